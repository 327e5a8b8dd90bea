/* A driver that does nothing, so that what is measured is what is in front of it. Every kernel has twelve parameters of
   8 bytes. */
#include <stddef.h>

int cuInit(unsigned flags) { return (int)flags; }

int cuCtxGetCurrent(void **context) {
    *context = (void *)4096;
    return 0;
}

int cuCtxGetDevice(int *device) {
    *device = 0;
    return 0;
}

int cuMemAlloc_v2(unsigned long *address, size_t bytes) {
    static unsigned long next = 1UL << 40;
    *address = next;
    next += (bytes + 511) & ~511UL;
    return 0;
}

int cuMemFree_v2(unsigned long address) {
    (void)address;
    return 0;
}

int cuFuncGetParamInfo(void *function, size_t number, size_t *offset, size_t *bytes) {
    (void)function;
    if (number >= 12) return 1;
    *offset = number * 8;
    *bytes = 8;
    return 0;
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared, void *stream, void **parameters, void **extra) {
    (void)function; (void)grid_x; (void)grid_y; (void)grid_z; (void)block_x; (void)block_y; (void)block_z; (void)shared;
    (void)stream; (void)parameters; (void)extra;
    return 0;
}

int cuMemcpyHtoDAsync_v2(unsigned long target, const void *source, size_t bytes, void *stream) {
    (void)target; (void)source; (void)bytes; (void)stream;
    return 0;
}

int cuMemsetD8Async(unsigned long target, unsigned char value, size_t count, void *stream) {
    (void)target; (void)value; (void)count; (void)stream;
    return 0;
}
