/* Threads that allocate, launch, copy, look and free at random, while their process is put to sleep, spills and is denied. */
#include <errno.h>

#define WORDS(bytes) ((bytes) / 4)
#define PIECES 6

struct moving { ptr address, range; uint64_t handle; size_t bytes; uint32_t value; };

static ptr fill_kernel, add_kernel;
static char *kernels;

static void load_kernels(const char *path) {
    ptr module = 0;
    FILE *file = fopen(path, "r");
    kernels = calloc(1, 1 << 16);
    if (file == NULL || fread(kernels, 1, (1 << 16) - 1, file) == 0) { fprintf(stderr, "no kernels: %d\n", errno); exit(7); }
    fclose(file);
    SAY("load", CALL(cuModuleLoadData, cuModuleLoadData, (ptr *, const void *), &module, kernels));
    SAY("fill", CALL(cuModuleGetFunction, cuModuleGetFunction, (ptr *, ptr, const char *), &fill_kernel, module, "gpuheap_fill"));
    SAY("add", CALL(cuModuleGetFunction, cuModuleGetFunction, (ptr *, ptr, const char *), &add_kernel, module, "gpuheap_add"));
}

/* A call that fails for no reason is made again, as often as it takes. */
static void again(int (*call)(void *), void *with) { while (call(with)) {} }

struct launch { ptr kernel, address, stream; size_t count; uint32_t value; };

static int launch(void *with) {
    struct launch *one = with;
    void *arguments[] = {&one->address, &one->count, &one->value};
    return CALL(cuLaunchKernel, cuLaunchKernel, (ptr, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, ptr, void **, void **),
                one->kernel, 4, 1, 1, 32, 1, 1, 0, one->stream, arguments, NULL);
}

static int wait_for(void *with) { return CALL(cuStreamSynchronize, cuStreamSynchronize, (ptr), *(ptr *)with); }

static int moving_allocate(struct moving *one, unsigned dice) {
    static const access_desc all = {{1, 0}, 3};
    memset(one, 0, sizeof *one);
    one->bytes = (1 + dice % 3) * 2 * MIB;
    if (dice & 64) return CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &one->address, one->bytes -= 4096);
    prop here;
    memset(&here, 0, sizeof here);
    here.kind = here.place.kind = here.types = 1;
    int code = CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &one->handle, one->bytes, &here, 0);
    if (code) return code;
    while (CALL(cuMemAddressReserve, cuMemAddressReserve, (ptr *, size_t, size_t, ptr, uint64_t), &one->range, one->bytes, 0, 0, 0)) {}
    while (CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), one->range, one->bytes, 0, one->handle, 0)) {}
    while (CALL(cuMemSetAccess, cuMemSetAccess, (ptr, size_t, const access_desc *, size_t), one->range, one->bytes, &all, 1)) {}
    one->address = one->range;
    return 0;
}

static void moving_free(struct moving *one) {
    if (one->range == 0) { while (CALL(cuMemFree, cuMemFree_v2, (ptr), one->address)) {} }
    else {
        while (CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), one->range, one->bytes)) {}
        while (CALL(cuMemRelease, cuMemRelease, (uint64_t), one->handle)) {}
        while (CALL(cuMemAddressFree, cuMemAddressFree, (ptr, size_t), one->range, one->bytes)) {}
    }
    one->address = 0;
}

static void moving_look(struct moving *one) {
    /* First, last and some in between: all of it takes long. */
    for (int i = 0; i < 8; i++) {
        uint32_t found = 0;
        size_t at = i == 7 ? WORDS(one->bytes) - 1 : WORDS(one->bytes) / 7 * (size_t)i;
        while (CALL(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, ptr, size_t), &found, one->address + 4 * at, 4)) {}
        if (found != one->value) { printf("word %zu of %zu holds %u for %u\n", at, WORDS(one->bytes), found, one->value); fflush(stdout); exit(1); }
    }
}

static unsigned moves_count, moves_denied;

static void *moves_thread(void *seed) {
    struct moving pieces[PIECES];
    unsigned dice = (unsigned)(uintptr_t)seed;
    ptr stream = 0;
    memset(pieces, 0, sizeof pieces);
    CALL(cuCtxSetCurrent, cuCtxSetCurrent, (ptr), context);
    while (CALL(cuStreamCreate, cuStreamCreate, (ptr *, unsigned), &stream, 0)) {}
    for (unsigned i = 0; i < moves_count; i++) {
        dice = dice * 1664525 + 1013904223;
        struct moving *one = &pieces[(dice >> 16) % PIECES], *other = &pieces[(dice >> 20) % PIECES];
        if (one->address == 0) {
            if (moving_allocate(one, dice >> 3)) { __atomic_add_fetch(&moves_denied, 1, __ATOMIC_RELAXED); one->address = 0; continue; }
            one->value = dice >> 5;
            struct launch fill = {fill_kernel, one->address, stream, WORDS(one->bytes), one->value};
            again(launch, &fill);
            again(wait_for, &stream);
        } else if (dice % 5 == 0) {
            moving_look(one);
            moving_free(one);
        } else if (dice % 5 == 1 && other->address && other != one) {
            size_t bytes = one->bytes < other->bytes ? one->bytes : other->bytes;
            if (bytes < one->bytes) continue;
            while (CALL(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (ptr, ptr, size_t, ptr), one->address, other->address, bytes, stream)) {}
            one->value = other->value;
            again(wait_for, &stream);
        } else if (dice % 5 == 2) moving_look(one);
        else {
            struct launch add = {add_kernel, one->address, stream, WORDS(one->bytes), dice % 100};
            again(launch, &add);
            one->value += dice % 100;
            /* Copies to the host and frees wait for all streams; copies between pieces are on this one. */
            if (dice & 256) again(wait_for, &stream);
        }
    }
    for (int i = 0; i < PIECES; i++) if (pieces[i].address) { moving_look(&pieces[i]); moving_free(&pieces[i]); }
    return NULL;
}

static void moves(const char *path, unsigned count) {
    static const char *const failing[] = {"cuMemAlloc_v2", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemcpyDtoDAsync_v2", "cuLaunchKernel", "cuMemcpyDtoHAsync_v2", "cuMemAddressReserve"};
    int (*control)(const char *) = dlsym(library, "gpuheap_fake_control");
    pthread_t all[8];
    moves_count = count;
    start();
    load_kernels(path);
    puts("ready");
    fflush(stdout);
    for (uintptr_t i = 0; i < 8; i++) pthread_create(&all[i], NULL, moves_thread, (void *)(i * 7919 + (uintptr_t)getpid()));
    for (int i = 0; i < 100; i++) {
        char command[64];
        snprintf(command, sizeof command, "fail %s %d %d", failing[i % 10], 1 + i % 7, i % 2 ? 2 : 999);
        control(command);
        usleep(1000);
    }
    for (int i = 0; i < 8; i++) pthread_join(all[i], NULL);
    control("reset");
    SAY("synchronize", CALL(cuCtxSynchronize, cuCtxSynchronize, (ptr), context));
    printf("denied some: %d\n", moves_denied > 0);
    charged("end");
}

/* How often something happened in the driver for tests. */
static uint64_t happened(const char *what) {
    uint64_t (*count)(const char *) = dlsym(library, "gpuheap_fake_calls");
    return count(what);
}

/* Pieces of 8 MiB, each filled with a value of its own, on a stream that is made for it. */
static void fill_pieces(const char *path, struct moving *pieces, int count, ptr *stream) {
    start();
    load_kernels(path);
    CALL(cuStreamCreate, cuStreamCreate, (ptr *, unsigned), stream, 0);
    for (int i = 0; i < count; i++) {
        pieces[i] = (struct moving){.bytes = 8 * MIB, .value = 100 * (uint32_t)i};
        printf("alloc: %d\n", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &pieces[i].address, pieces[i].bytes));
        struct launch fill = {fill_kernel, pieces[i].address, *stream, WORDS(pieces[i].bytes), pieces[i].value};
        launch(&fill);
    }
}

/* Uses the last of its pieces only, which are the ones that did not fit, for some seconds. */
static void hot(const char *path) {
    struct moving pieces[8];
    struct timespec begun, now;
    ptr stream = 0;
    uint32_t rounds = 0;
    fill_pieces(path, pieces, 8, &stream);
    puts("ready");
    fflush(stdout);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        for (int i = 5; i < 8; i++) {
            struct launch add = {add_kernel, pieces[i].address, stream, WORDS(pieces[i].bytes), 1};
            launch(&add);
        }
        wait_for(&stream);
        rounds++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begun.tv_sec < 4);
    for (int i = 0; i < 8; i++) {
        if (i >= 5) pieces[i].value += rounds;
        moving_look(&pieces[i]);
        moving_free(&pieces[i]);
    }
    charged("end");
}

/* The same as one graph, launched as often as it takes. */
static void graphs(const char *path) {
    struct moving pieces[8];
    struct timespec begun, now;
    ptr stream = 0, graph = 0, ready = 0;
    uint32_t rounds = 0;
    fill_pieces(path, pieces, 8, &stream);
    wait_for(&stream);
    SAY("begin", CALL(cuStreamBeginCapture, cuStreamBeginCapture_v2, (ptr, unsigned), stream, 0));
    for (int i = 5; i < 8; i++) {
        struct launch add = {add_kernel, pieces[i].address, stream, WORDS(pieces[i].bytes), 1};
        launch(&add);
    }
    SAY("end", CALL(cuStreamEndCapture, cuStreamEndCapture, (ptr, ptr *), stream, &graph));
    SAY("instantiate", CALL(cuGraphInstantiate, cuGraphInstantiateWithFlags, (ptr *, ptr, uint64_t), &ready, graph, 0));
    /* What can be launched does not need what it was made of. */
    SAY("destroy", CALL(cuGraphDestroy, cuGraphDestroy, (ptr), graph));
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        CALL(cuGraphLaunch, cuGraphLaunch, (ptr, ptr), ready, stream);
        wait_for(&stream);
        rounds++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begun.tv_sec < 3);
    SAY("destroy what was launched", CALL(cuGraphExecDestroy, cuGraphExecDestroy, (ptr), ready));
    for (int i = 0; i < 8; i++) {
        if (i >= 5) pieces[i].value += rounds;
        moving_look(&pieces[i]);
        moving_free(&pieces[i]);
    }
    charged("end");
}

/* The same again and again, with more memory than there is: twelve pieces in turn, some thirty launches each. */
static void turns(const char *path) {
    struct moving pieces[12];
    struct timespec begun, now;
    ptr stream = 0;
    uint32_t rounds = 0;
    fill_pieces(path, pieces, 12, &stream);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        for (int i = 0; i < 12; i++) {
            struct launch add = {add_kernel, pieces[i].address, stream, WORDS(pieces[i].bytes), 1};
            launch(&add);
            /* Of the first page alone, so that it does not take long. */
            add.count = 16;
            add.value = 0;
            for (int again = 0; again < 29; again++) launch(&add);
        }
        wait_for(&stream);
        rounds++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begun.tv_sec < 6);
    for (int i = 0; i < 12; i++) {
        pieces[i].value += rounds;
        moving_look(&pieces[i]);
        moving_free(&pieces[i]);
    }
    printf("copied ahead: %llu the same, %llu not\n", (unsigned long long)happened("found the same"), (unsigned long long)happened("found different"));
    printf("rounds: %s\n", rounds > 5 ? "some" : "few");
    charged("end");
}

/* Frees that fail, and what is freed while a graph is being recorded. */
static void frees(void) {
    ptr a = 0, b = 0, stream = 0, graph = 0;
    start();
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 40 * MIB));
    SAY("no context", CALL(cuCtxSetCurrent, cuCtxSetCurrent, (ptr), 0));
    SAY("free without one", CALL(cuMemFree, cuMemFree_v2, (ptr), a));
    SAY("a context", CALL(cuCtxSetCurrent, cuCtxSetCurrent, (ptr), context));
    SAY("free", CALL(cuMemFree, cuMemFree_v2, (ptr), a));
    SAY("free again", CALL(cuMemFree, cuMemFree_v2, (ptr), a));
    SAY("stream", CALL(cuStreamCreate, cuStreamCreate, (ptr *, unsigned), &stream, 1));
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 40 * MIB));
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &b, 40 * MIB));
    /* Relaxed: what waits for the device is the thread's own business. */
    SAY("begin", CALL(cuStreamBeginCapture, cuStreamBeginCapture_v2, (ptr, unsigned), stream, 2));
    SAY("free", CALL(cuMemFree, cuMemFree_v2, (ptr), a));
    charged("in it");
    SAY("end of none", CALL(cuStreamEndCapture, cuStreamEndCapture, (ptr, ptr *), 0, &graph) != 0 ? 1 : 0);
    charged("still in it");
    SAY("end", CALL(cuStreamEndCapture, cuStreamEndCapture, (ptr, ptr *), stream, &graph));
    charged("after it");
    SAY("free", CALL(cuMemFree, cuMemFree_v2, (ptr), b));
    charged("end");
}
