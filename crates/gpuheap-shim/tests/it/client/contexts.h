/* A second context that allocates nothing and works on the memory of the first. */

struct fake_launch { unsigned grid[3], block[3]; const void *const *arguments; };

/* Takes its time, then adds to the words as the driver's own does. */
static void slow_add(const struct fake_launch *launch) {
    uint32_t *words = *(uint32_t *const *)launch->arguments[0], value = *(const uint32_t *)launch->arguments[2];
    size_t count = *(const size_t *)launch->arguments[1];
    for (size_t i = 0; i < count; i++) {
        if (i % (count / 10) == 0) usleep(100000);
        words[i] += value;
    }
}

static void contexts(const char *path) {
    struct moving one = {.bytes = 8 * MIB, .value = 0};
    void (*registers)(const char *, void (*)(const struct fake_launch *)) = dlsym(library, "gpuheap_fake_register_kernel");
    ptr other = 0, stream = 0;
    char line[16];
    registers("gpuheap_add", slow_add);
    start();
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &one.address, one.bytes));
    SAY("fill", CALL(cuMemsetD8, cuMemsetD8_v2, (ptr, unsigned char, size_t), one.address, 0, one.bytes));
    SAY("synchronize", CALL(cuCtxSynchronize, cuCtxSynchronize, (void)));
    SAY("create", CALL(cuCtxCreate, cuCtxCreate_v2, (ptr *, unsigned, int), &other, 0, 0));
    load_kernels(path);
    SAY("stream", CALL(cuStreamCreate, cuStreamCreate, (ptr *, unsigned), &stream, 1));
    struct launch add = {add_kernel, one.address, stream, WORDS(one.bytes), 5};
    SAY("launch", launch(&add));
    puts("ready");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL) exit(5);
    SAY("wait", wait_for(&stream));
    one.value = 5;
    moving_look(&one);
    puts("looked at 1");
    fflush(stdout);
}

/* Memory of one device that another works on: taken before it may, and after. */
static void peers(const char *path) {
    struct moving both[2] = {{.bytes = 8 * MIB}, {.bytes = 8 * MIB}};
    ptr other = 0, stream = 0;
    char line[16];
    start();
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &both[0].address, both[0].bytes));
    SAY("retain", CALL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (ptr *, int), &other, 1));
    SAY("current", CALL(cuCtxSetCurrent, cuCtxSetCurrent, (ptr), other));
    SAY("enable", CALL(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, (ptr, unsigned), context, 0));
    load_kernels(path);
    SAY("stream", CALL(cuStreamCreate, cuStreamCreate, (ptr *, unsigned), &stream, 0));
    CALL(cuCtxSetCurrent, cuCtxSetCurrent, (ptr), context);
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &both[1].address, both[1].bytes));
    for (int i = 0; i < 2; i++) CALL(cuMemsetD8, cuMemsetD8_v2, (ptr, unsigned char, size_t), both[i].address, 0, both[i].bytes);
    /* The other context's streams do not wait for this one's. */
    SAY("synchronize", CALL(cuCtxSynchronize, cuCtxSynchronize, (void)));
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        CALL(cuCtxSetCurrent, cuCtxSetCurrent, (ptr), other);
        for (int i = 0; i < 2; i++) {
            struct launch add = {add_kernel, both[i].address, stream, WORDS(both[i].bytes), 5 + i};
            both[i].value += 5 + i;
            SAY("launch", launch(&add));
        }
        SAY("wait", wait_for(&stream));
        CALL(cuCtxSetCurrent, cuCtxSetCurrent, (ptr), context);
        for (int i = 0; i < 2; i++) moving_look(&both[i]);
        puts("looked at 2");
        fflush(stdout);
    }
}
