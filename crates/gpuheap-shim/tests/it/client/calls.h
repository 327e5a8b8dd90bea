/* Calls of every kind, those that go wrong included. */

static void info(void) {
    size_t free_bytes = 0, total = 0, alone = 0, device = 0;
    SAY("info", CALL(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *), &free_bytes, &total));
    SAY("info without free", CALL(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *), NULL, &alone));
    SAY("info without total", CALL(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *), &alone, NULL));
    SAY("info without either", CALL(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *), NULL, NULL));
    SAY("total", CALL(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *, int), &device, 0));
    printf("%zu of %zu, %zu, %zu\n", free_bytes, total, alone, device);
}

static void linear(void) {
    ptr a = 0, b = 0, pitched = 0, managed = 0, other = 7;
    size_t pitch = 0, bytes = 0;
    void *host = NULL, *own = malloc(8192);
    char found[5] = "....";
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 3 * MIB));
    SAY("alloc small", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &b, 1000));
    SAY("pitch", CALL(cuMemAllocPitch, cuMemAllocPitch_v2, (ptr *, size_t *, size_t, size_t, unsigned), &pitched, &pitch, 100, 50, 4));
    SAY("managed", CALL(cuMemAllocManaged, cuMemAllocManaged, (ptr *, size_t, unsigned), &managed, 5 * MIB, 1));
    SAY("host", CALL(cuMemAllocHost, cuMemAllocHost_v2, (void **, size_t), &host, 12345));
    SAY("register", CALL(cuMemHostRegister, cuMemHostRegister_v2, (void *, size_t, unsigned), own, 8192, 0));
    charged("linear");
    SAY("write", CALL(cuMemcpyHtoD, cuMemcpyHtoD_v2, (ptr, const void *, size_t), a, "text", 4));
    SAY("copy", CALL(cuMemcpyDtoD, cuMemcpyDtoD_v2, (ptr, ptr, size_t), b, a, 4));
    SAY("read", CALL(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, ptr, size_t), found, b, 4));
    SAY("range", CALL(cuMemGetAddressRange, cuMemGetAddressRange_v2, (ptr *, size_t *, ptr), NULL, &bytes, a + 5));
    printf("%s %zu %zu\n", found, pitch, bytes);
    info();
    /* What goes wrong is no memory. */
    SAY("alloc nothing", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &other, 0));
    SAY("alloc too much", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &other, (size_t)1 << 50));
    SAY("alloc all that can be said", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &other, SIZE_MAX));
    SAY("alloc to nowhere", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), NULL, 512));
    SAY("pitch too high", CALL(cuMemAllocPitch, cuMemAllocPitch_v2, (ptr *, size_t *, size_t, size_t, unsigned), &other, &pitch, SIZE_MAX / 2, 4, 4));
    SAY("free what is not there", CALL(cuMemFree, cuMemFree_v2, (ptr), 0x12340000));
    SAY("free the middle", CALL(cuMemFree, cuMemFree_v2, (ptr), a + 4096));
    SAY("free nothing", CALL(cuMemFree, cuMemFree_v2, (ptr), 0));
    SAY("free host memory that is none", CALL(cuMemFreeHost, cuMemFreeHost, (void *), own));
    printf("%d\n", other == 7);
    charged("the same");
    SAY("free", CALL(cuMemFree, cuMemFree_v2, (ptr), a));
    SAY("free again", CALL(cuMemFree, cuMemFree_v2, (ptr), a));
    SAY("free small in order", CALL(cuMemFreeAsync, cuMemFreeAsync, (ptr, ptr), b, 0));
    SAY("free pitched", CALL(cuMemFree, cuMemFree_v2, (ptr), pitched));
    SAY("free managed", CALL(cuMemFree, cuMemFree_v2, (ptr), managed));
    SAY("free host", CALL(cuMemFreeHost, cuMemFreeHost, (void *), host));
    SAY("unregister", CALL(cuMemHostUnregister, cuMemHostUnregister, (void *), own));
    SAY("synchronize", CALL(cuCtxSynchronize, cuCtxSynchronize, (ptr), context));
    charged("nothing");
}

static void ordered(void) {
    ptr a = 0, b = 0, c = 0, pool = 0, stream = 0;
    uint64_t held = 0;
    pool_props props;
    memset(&props, 0, sizeof props);
    props.kind = 1;
    props.place.kind = 1;
    SAY("stream", CALL(cuStreamCreate, cuStreamCreate, (ptr *, unsigned), &stream, 1));
    SAY("pool", CALL(cuMemPoolCreate, cuMemPoolCreate, (ptr *, const pool_props *), &pool, &props));
    SAY("keep", CALL(cuMemPoolSetAttribute, cuMemPoolSetAttribute, (ptr, unsigned, void *), pool, 4, &(uint64_t){UINT64_MAX}));
    SAY("ordered", CALL(cuMemAllocAsync, cuMemAllocAsync, (ptr *, size_t, ptr), &a, 1000, stream));
    charged("one chunk");
    SAY("ordered", CALL(cuMemAllocAsync, cuMemAllocAsync, (ptr *, size_t, ptr), &b, 10 * MIB, stream));
    SAY("from pool", CALL(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, (ptr *, size_t, ptr, ptr), &c, 40 * MIB, pool, stream));
    SAY("too much", CALL(cuMemAllocAsync, cuMemAllocAsync, (ptr *, size_t, ptr), &(ptr){0}, (size_t)1 << 50, stream));
    SAY("nothing", CALL(cuMemAllocAsync, cuMemAllocAsync, (ptr *, size_t, ptr), &(ptr){0}, 0, stream));
    charged("two pools");
    SAY("fill", CALL(cuMemsetD8Async, cuMemsetD8Async, (ptr, unsigned char, size_t, ptr), b, 3, 10 * MIB, stream));
    SAY("free", CALL(cuMemFree, cuMemFree_v2, (ptr), a));
    SAY("free", CALL(cuMemFreeAsync, cuMemFreeAsync, (ptr, ptr), b, stream));
    SAY("free", CALL(cuMemFreeAsync, cuMemFreeAsync, (ptr, ptr), c, stream));
    SAY("synchronize", CALL(cuStreamSynchronize, cuStreamSynchronize, (ptr), stream));
    charged("one keeps");
    SAY("held", CALL(cuMemPoolGetAttribute, cuMemPoolGetAttribute, (ptr, unsigned, void *), pool, 5, &held));
    printf("%llu\n", (unsigned long long)held);
    ptr graph = 0;
    unsigned status = 9;
    SAY("capture", CALL(cuStreamBeginCapture, cuStreamBeginCapture_v2, (ptr, unsigned), stream, 0));
    SAY("alloc in a capture", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, MIB));
    SAY("ordered in a capture", CALL(cuMemAllocAsync, cuMemAllocAsync, (ptr *, size_t, ptr), &a, 1000, stream));
    SAY("info in a capture", CALL(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *), NULL, NULL));
    SAY("capturing", CALL(cuStreamIsCapturing, cuStreamIsCapturing, (ptr, unsigned *), stream, &status));
    SAY("end of the capture", CALL(cuStreamEndCapture, cuStreamEndCapture, (ptr, ptr *), stream, &graph));
    printf("%u\n", status);
    SAY("trim", CALL(cuMemPoolTrimTo, cuMemPoolTrimTo, (ptr, size_t), pool, 0));
    charged("nothing");
    SAY("destroy", CALL(cuMemPoolDestroy, cuMemPoolDestroy, (ptr), pool));
    SAY("destroy", CALL(cuStreamDestroy, cuStreamDestroy_v2, (ptr), stream));
}

static void paging(void) {
    ptr range = 0;
    uint64_t one = 0, two = 0, host = 0, again = 0, imported = 0;
    prop here, there;
    access_desc all = {{1, 0}, 3};
    char found[5] = "....";
    int file = -1;
    memset(&here, 0, sizeof here);
    here.kind = 1;
    here.place.kind = 1;
    there = here;
    there.place.kind = 3;
    here.types = 1;
    SAY("reserve", CALL(cuMemAddressReserve, cuMemAddressReserve, (ptr *, size_t, size_t, ptr, uint64_t), &range, 16 * MIB, 0, 0, 0));
    SAY("create", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &one, 4 * MIB, &here, 0));
    SAY("create", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &two, 2 * MIB, &here, 0));
    SAY("create host", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &host, 6 * MIB, &there, 0));
    SAY("create odd", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &again, 12345, &here, 0));
    SAY("create of nothing", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &again, 2 * MIB, NULL, 0));
    here.types = 8;
    SAY("create for a fabric", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &again, 2 * MIB, &here, 0));
    here.types = 1;
    for (uint32_t kind = 0; kind < 8; kind++) {
        prop any = there;
        any.place.kind = kind;
        any.place.id = 99;
        SAY("create at a place", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &again, 2 * MIB, &any, 0));
        if (again) { SAY("and release", CALL(cuMemRelease, cuMemRelease, (uint64_t), again)); again = 0; }
    }
    charged("created");
    SAY("map", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range, 4 * MIB, 0, one, 0));
    SAY("map", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range + 4 * MIB, 2 * MIB, 0, two, 0));
    SAY("map host", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range + 6 * MIB, 6 * MIB, 0, host, 0));
    SAY("map twice", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range, 4 * MIB, 0, one, 0));
    SAY("map an offset", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range + 12 * MIB, 2 * MIB, 2 * MIB, one, 0));
    SAY("access", CALL(cuMemSetAccess, cuMemSetAccess, (ptr, size_t, const access_desc *, size_t), range, 12 * MIB, &all, 1));
    SAY("write", CALL(cuMemcpyHtoD, cuMemcpyHtoD_v2, (ptr, const void *, size_t), range + 4 * MIB - 2, "text", 4));
    SAY("read", CALL(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, ptr, size_t), found, range + 4 * MIB - 2, 4));
    printf("%s\n", found);
    SAY("release", CALL(cuMemRelease, cuMemRelease, (uint64_t), one));
    SAY("release", CALL(cuMemRelease, cuMemRelease, (uint64_t), host));
    charged("held by mappings");
    SAY("retain", CALL(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, (uint64_t *, void *), &again, (void *)(range + MIB)));
    printf("%d\n", again == one);
    SAY("unmap a part", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range, 2 * MIB));
    SAY("unmap with a tail that is not mapped", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range, 16 * MIB));
    charged("still");
    SAY("unmap two", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range, 6 * MIB));
    charged("held by handles");
    SAY("export", CALL(cuMemExportToShareableHandle, cuMemExportToShareableHandle, (void *, uint64_t, unsigned, uint64_t), &file, two, 1, 0));
    SAY("import", CALL(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, (uint64_t *, void *, unsigned), &imported, (void *)(intptr_t)file, 1));
    SAY("map what was imported", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range, 2 * MIB, 0, imported, 0));
    charged("imported");
    SAY("unmap", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range, 2 * MIB));
    SAY("release", CALL(cuMemRelease, cuMemRelease, (uint64_t), imported));
    SAY("release", CALL(cuMemRelease, cuMemRelease, (uint64_t), again));
    SAY("release once too often", CALL(cuMemRelease, cuMemRelease, (uint64_t), again));
    SAY("release", CALL(cuMemRelease, cuMemRelease, (uint64_t), two));
    SAY("unmap host", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range + 6 * MIB, 6 * MIB));
    SAY("give addresses back", CALL(cuMemAddressFree, cuMemAddressFree, (ptr, size_t), range, 16 * MIB));
    close(file);
    charged("nothing");
}

static void others(void) {
    ptr array = 0, graph = 0, exec = 0, node = 0, a = 0;
    array_desc wanted = {1000, 500, 0x20, 4}, odd = {1000, 500, 0x20, 3};
    node_params params;
    ipc_handle handle;
    memset(&params, 0, sizeof params);
    params.pool.kind = params.pool.place.kind = 1;
    params.bytes = 3 * MIB;
    SAY("array", CALL(cuArrayCreate, cuArrayCreate_v2, (ptr *, const array_desc *), &array, &wanted));
    SAY("odd array", CALL(cuArrayCreate, cuArrayCreate_v2, (ptr *, const array_desc *), &(ptr){0}, &odd));
    SAY("graph", CALL(cuGraphCreate, cuGraphCreate, (ptr *, unsigned), &graph, 0));
    SAY("node", CALL(cuGraphAddMemAllocNode, cuGraphAddMemAllocNode, (ptr *, ptr, const ptr *, size_t, node_params *), &node, graph, NULL, 0, &params));
    SAY("instantiate", CALL(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, (ptr *, ptr, uint64_t), &exec, graph, 0));
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 3 * MIB));
    SAY("export", CALL(cuIpcGetMemHandle, cuIpcGetMemHandle, (ipc_handle *, ptr), &handle, a));
    SAY("open its own", CALL(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, (ptr *, ipc_handle, unsigned), &(ptr){0}, handle, 1));
    charged("others");
    SAY("array away", CALL(cuArrayDestroy, cuArrayDestroy, (ptr), array));
    SAY("array again", CALL(cuArrayDestroy, cuArrayDestroy, (ptr), array));
    SAY("exec away", CALL(cuGraphExecDestroy, cuGraphExecDestroy, (ptr), exec));
    SAY("graph away", CALL(cuGraphDestroy, cuGraphDestroy, (ptr), graph));
    charged("one left");
    SAY("release", CALL(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (int), 0));
    SAY("gone", CALL(cuMemFree, cuMemFree_v2, (ptr), a));
    charged("nothing");
}

static void calls(void) {
    start();
    info();
    linear();
    ordered();
    paging();
    others();
}

/* Where memory is says the request or the context, whichever the function goes by. */
static void *without_context(void *none) {
    ptr a = 0;
    SAY("without a context", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, MIB));
    return none;
}

static void devices(void) {
    ptr a = 0, other = 0, b = 0, c = 0;
    uint64_t handle = 0;
    pthread_t thread;
    prop there;
    memset(&there, 0, sizeof there);
    there.kind = there.place.kind = 1;
    there.place.id = 1;
    start();
    SAY("create on the other", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &handle, 4 * MIB, &there, 0));
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, MIB));
    pthread_create(&thread, NULL, without_context, NULL);
    pthread_join(thread, NULL);
    SAY("another context", CALL(cuCtxCreate, cuCtxCreate_v4, (ptr *, void *, unsigned, int), &other, NULL, 0, 1));
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &b, 3 * MIB));
    SAY("ordered", CALL(cuMemAllocAsync, cuMemAllocAsync, (ptr *, size_t, ptr), &c, 1000, 0));
    charged("both");
    SAY("free the first's", CALL(cuMemFree, cuMemFree_v2, (ptr), a));
    charged("other");
    SAY("end", CALL(cuCtxDestroy, cuCtxDestroy_v2, (ptr), other));
    SAY("release", CALL(cuMemRelease, cuMemRelease, (uint64_t), handle));
    SAY("reset", CALL(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (int), 0));
    charged("a pool's chunk");
}

static int called_back;

static void call_back(void) {
    ptr a = 0;
    if (called_back++ > 3) { printf("endless\n"); exit(1); }
    SAY("from within", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 3 * MIB));
}

/* The driver comes back through exported functions: that is the driver's own memory, and counted once. */
static void nested(void) {
    ptr a = 0;
    void (*set)(const char *, void (*)(void)) = dlsym(library, "gpuheap_fake_call_back");
    start();
    set("cuMemCreate", call_back);
    uint64_t handle = 0;
    prop here;
    memset(&here, 0, sizeof here);
    here.kind = here.place.kind = 1;
    SAY("create", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &handle, 4 * MIB, &here, 0));
    charged("nested");
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, MIB));
    charged("after");
}

/* Every form of every function: what the driver answers, and whether it is the library's own export. */
static void resolve(const char *list) {
    char base[128], flavour[16], symbol[128];
    int since;
    FILE *file = fopen(list, "r");
    if (file == NULL) exit(3);
    int (*old)(const char *, void **, int, uint64_t) = dlsym(library, "cuGetProcAddress");
    SAY("init", CALL(cuInit, cuInit, (unsigned), 0));
    while (fscanf(file, "%127s %d %15s %127s", base, &since, flavour, symbol) == 4) {
        uint64_t flags = flavour[0] == '-' ? 1 : 2;
        void *exported = dlsym(library, symbol), *found = NULL, *before = NULL;
        int status = -1;
        int code = get_proc(base, &found, since, flags, &status);
        int code_before = old(base, &before, since, flags);
        printf("%s %d: %d %d %d, %d %d, %d\n", symbol, since, code, status, found == exported, code_before, before == exported, get_proc(base, NULL, since, flags, &status));
        found = NULL;
        printf("%d %d\n", get_proc(base, &found, since, flags, NULL), found == exported);
    }
    void *found = (void *)1;
    int status = -1;
    printf("%d %d %d\n", get_proc("cuNoSuchFunction", &found, 12000, 1, &status), status, found == NULL);
    printf("%d %d %d\n", get_proc("cuMemAllocAsync", &found, 11010, 1, &status), status, found == NULL);
    printf("%d\n", get_proc("cuMemAlloc", &found, 99999, 1, &status));
    printf("%d\n", get_proc(NULL, &found, 12000, 1, &status));
    fclose(file);
}

