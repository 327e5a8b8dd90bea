"""The parts of `gpuheap.record`: when stacks are walked, what has which name, what the driver says, when it is saved."""
