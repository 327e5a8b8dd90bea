"""The parts of `gpuheap.watch`: where counters come from, when steps end, where health goes."""
