"""Several hosts on one machine: network namespaces, links and processors of their own."""
