"""The parts of `gpuheap.record`, one file each."""
