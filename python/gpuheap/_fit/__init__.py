"""What `gpuheap fit` runs in Python: the tracer, and the levers of a plan. One file a duty; see :mod:`gpuheap._fit.trace`."""
