/* A management library for tests: two devices, in another order than CUDA's. Its functions fail as NVML's do.
   The environment says what is on each device: FAKE_NVML_TOTAL, _RESERVED, _FREE, in bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory2;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu, compute; } process2;
enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, INSUFFICIENT_SIZE = 7, UNKNOWN = 999, MISMATCH = 25 };

static int initialised;
static char devices[2];

static unsigned long long setting(const char *name, unsigned long long otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, 0, 10) : otherwise;
}
static unsigned long long total(void) { return setting("FAKE_NVML_TOTAL", 1ull << 30); }
static unsigned long long reserved(void) { return setting("FAKE_NVML_RESERVED", 24ull << 20); }
static unsigned long long left(void) { return setting("FAKE_NVML_FREE", 1000ull << 20); }
static int check(void *device) {
    if (!initialised) return UNINITIALIZED;
    return device == &devices[0] || device == &devices[1] ? (int)setting("FAKE_NVML_CODE", 0) : INVALID_ARGUMENT;
}

int nvmlInit_v2(void) { initialised++; return SUCCESS; }
int nvmlShutdown(void) { if (!initialised) return UNINITIALIZED; initialised--; return SUCCESS; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.65.06"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return initialised ? SUCCESS : UNINITIALIZED; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (!initialised) return UNINITIALIZED;
    if (index > 1) return INVALID_ARGUMENT;
    *device = &devices[index];
    return SUCCESS;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) { snprintf(text, size, "fake"); return check(device); }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) { *now = *later = 0; return check(device); }
/* The driver for tests has the same devices the other way round: "gpuheap fake" and the number. */
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    int code = check(device), number = device == &devices[0];
    if (code) return code;
    if (getenv("FAKE_NVML_NO_UUID")) return NOT_SUPPORTED;
    if (size < 80) return INSUFFICIENT_SIZE;
    snprintf(text, size, "%s67707568-6561-7020-6661-6b65000000%02x", setting("FAKE_NVML_MIG", 0) ? "MIG-" : "GPU-", number);
    return SUCCESS;
}
#ifndef OLD
int nvmlDeviceGetMemoryInfo_v2(void *device, memory2 *memory) {
    int code = check(device);
    if (code) return code;
    if (!memory) return INVALID_ARGUMENT;
    /* As a later driver might: it takes a later form of the structure, too. */
    if (memory->version == (48 | 3u << 24)) { memset((char *)memory + 4, 0x55, 44); return SUCCESS; }
    if (memory->version != (sizeof *memory | 2u << 24)) return MISMATCH;
    memory->total = total(), memory->reserved = reserved(), memory->free = left();
    memory->used = memory->total - memory->reserved - memory->free;
    return SUCCESS;
}
#endif
int nvmlDeviceGetMemoryInfo(void *device, memory1 *memory) {
    int code = check(device);
    if (code) return code;
    if (!memory) return INVALID_ARGUMENT;
#ifndef OLD
    if (getenv("FAKE_NVML_NESTED")) {
        /* By its exported name, where another library may come first. */
        memory2 newer = {.version = sizeof newer | 2u << 24};
        code = nvmlDeviceGetMemoryInfo_v2(device, &newer);
        memory->total = newer.total, memory->free = newer.free, memory->used = newer.used + newer.reserved;
        return code;
    }
#endif
    memory->total = total(), memory->free = left(), memory->used = memory->total - memory->free;
    return SUCCESS;
}
int nvmlDeviceGetBAR1MemoryInfo(void *device, memory1 *memory) {
    memory->total = 128ull << 30, memory->free = 127ull << 30, memory->used = 1ull << 30;
    return check(device);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process2 *rows) {
    unsigned room = *count;
    *count = 1;
    if (room < 1) return INSUFFICIENT_SIZE;
    rows[0] = (process2){(unsigned)getpid(), 3ull << 30, 0, 0};
    return check(device);
}
/* Not of this time: nobody but the program and the library can know it. */
int nvmlDeviceGetTomorrow(void *device, int day) { return check(device) ? -1 : day + 1; }
