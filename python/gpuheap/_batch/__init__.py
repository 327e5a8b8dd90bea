"""How `gpuheap.find_batch_size` works: one file a subject."""
