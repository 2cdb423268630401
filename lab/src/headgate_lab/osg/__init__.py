"""Online Shuffle Grouping (Rivetti et al. 2016): its workload, and a simulation of who wins."""
