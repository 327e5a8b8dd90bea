"""What `gpuheap fit` runs in Python: the tracer, and the levers of a plan. See :mod:`gpuheap._fit.trace`."""
