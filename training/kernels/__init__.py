"""Kernels of our own, in Triton: a file for each, with its operator and what it computes on the device `meta`.

A GPU computes by them what the plain forms, in the models and in optim/, compute anywhere (`train.kernels`).
"""
