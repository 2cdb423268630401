"""Planners to compare with, each as published; no default uses one."""
