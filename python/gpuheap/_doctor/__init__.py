"""The checks of `gpuheap.doctor`, one file each."""
