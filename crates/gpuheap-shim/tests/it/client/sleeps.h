/* Memory of every kind that may move, its content looked at whenever a line comes in. */

static struct { ptr address; size_t bytes; unsigned char value; } kept[40];
static int kept_count;

static void keep(ptr address, size_t bytes) {
    unsigned char value = (unsigned char)(17 * kept_count + 3);
    kept[kept_count].address = address;
    kept[kept_count].bytes = bytes;
    kept[kept_count++].value = value;
    CALL(cuMemsetD8, cuMemsetD8_v2, (ptr, unsigned char, size_t), address, value, bytes);
}

static void keep_linear(size_t bytes) {
    ptr address = 0;
    int code = CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &address, bytes);
    printf("alloc %zu: %d\n", bytes, code);
    if (code == 0) keep(address, bytes);
}

/* As PyTorch's expandable segments: handles in a reservation, released while they are mapped. */
static void keep_mapped(size_t count, size_t bytes) {
    static const access_desc all = {{1, 0}, 3};
    prop here;
    ptr range = 0;
    memset(&here, 0, sizeof here);
    here.kind = here.place.kind = here.types = 1;
    SAY("reserve", CALL(cuMemAddressReserve, cuMemAddressReserve, (ptr *, size_t, size_t, ptr, uint64_t), &range, count * bytes, 0, 0, 0));
    for (size_t i = 0; i < count; i++) {
        uint64_t handle = 0;
        int code = CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &handle, bytes, &here, 0);
        printf("create %zu: %d\n", bytes, code);
        if (code) return;
        SAY("map", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range + i * bytes, bytes, 0, handle, 0));
        if (i % 2) SAY("release", CALL(cuMemRelease, cuMemRelease, (uint64_t), handle));
        SAY("access", CALL(cuMemSetAccess, cuMemSetAccess, (ptr, size_t, const access_desc *, size_t), range + i * bytes, bytes, &all, 1));
        keep(range + i * bytes, bytes);
    }
}

static void look(void) {
    static unsigned char found[40 * MIB];
    for (int i = 0; i < kept_count; i++) {
        size_t bytes = kept[i].bytes, wrong = 0, size = 0;
        ptr begin = 0;
        uint32_t kind = 0;
        int ordinal = -1, code = CALL(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, ptr, size_t), found, kept[i].address, bytes);
        for (size_t j = 0; j < bytes; j++) wrong += found[j] != kept[i].value;
        if (code || wrong) printf("piece %d: %d, %zu bytes of %zu are wrong\n", i, code, wrong, bytes);
        CALL(cuPointerGetAttribute, cuPointerGetAttribute, (void *, int, ptr), &kind, 2, kept[i].address + bytes - 1);
        CALL(cuPointerGetAttribute, cuPointerGetAttribute, (void *, int, ptr), &ordinal, 9, kept[i].address + bytes - 1);
        CALL(cuMemGetAddressRange, cuMemGetAddressRange_v2, (ptr *, size_t *, ptr), &begin, &size, kept[i].address + bytes - 1);
        if (kind != 2 || ordinal != 0 || begin != kept[i].address || size != bytes)
            printf("piece %d: kind %u on %d, %zu bytes before the end, size %zu of %zu\n", i, kind, ordinal, (size_t)(kept[i].address + bytes - begin), size, bytes);
        kept[i].value++;
        CALL(cuMemsetD8, cuMemsetD8_v2, (ptr, unsigned char, size_t), kept[i].address, kept[i].value, bytes);
    }
    printf("looked at %d\n", kept_count);
    fflush(stdout);
}

static void sleeps(void) {
    char line[16];
    start();
    keep_linear(1000);
    keep_linear(2 * MIB);
    keep_linear(3 * MIB + 5);
    keep_linear(36 * MIB);
    keep_mapped(3, 4 * MIB);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'm') keep_linear(8 * MIB);
        /* As whoever registers memory with a network card does: of an allocation, of a chunk, and without success. */
        unsigned on = 1;
        int handle = -1;
        if (line[0] == 'p')
            for (int i = 3; i <= 4; i++)
                SAY("synchronous", CALL(cuPointerSetAttribute, cuPointerSetAttribute, (const void *, int, ptr), &on, 6, kept[i].address + 5));
        if (line[0] == 'h')
            SAY("descriptor", CALL(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, (void *, ptr, size_t, int, unsigned long long), &handle, kept[3].address, kept[3].bytes, 1, 0));
        look();
    }
    for (int i = 0; i < 4; i++) SAY("free", CALL(cuMemFree, cuMemFree_v2, (ptr), kept[i].address));
    charged("end");
}

/* What is mapped as one goes as one, whatever is behind it; a call that fails in the middle of that is made again. */
static void cut(ptr range, size_t bytes, const prop *here) {
    static const access_desc all = {{1, 0}, 3};
    int (*control)(const char *) = dlsym(library, "gpuheap_fake_control");
    uint64_t handle = 0, other = 0;
    SAY("create", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &handle, bytes, here, 0));
    SAY("create another", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &other, 2 * MIB, here, 0));
    SAY("map", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range, bytes, 0, handle, 0));
    SAY("map the other", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range + bytes + 2 * MIB, 2 * MIB, 0, other, 0));
    SAY("access", CALL(cuMemSetAccess, cuMemSetAccess, (ptr, size_t, const access_desc *, size_t), range, bytes, &all, 1));
    SAY("unmap the beginning", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range, 32 * MIB));
    SAY("unmap less than a piece", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range, 2 * MIB));
    SAY("unmap the end", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range + 64 * MIB, bytes - 64 * MIB));
    SAY("unmap the middle", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range + 32 * MIB, 64 * MIB));
    SAY("unmap with a tail that is not mapped", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range, bytes + 2 * MIB));
    SAY("unmap over a hole", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range, bytes + 4 * MIB));
    SAY("fill", CALL(cuMemsetD8, cuMemsetD8_v2, (ptr, unsigned char, size_t), range, 7, bytes));
    SAY("synchronize", CALL(cuCtxSynchronize, cuCtxSynchronize, (ptr), context));
    control("fail cuMemUnmap 3 999");
    SAY("unmap", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range, bytes));
    control("reset");
    SAY("unmap the other", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range + bytes + 2 * MIB, 2 * MIB));
    SAY("release", CALL(cuMemRelease, cuMemRelease, (uint64_t), handle));
    SAY("release the other", CALL(cuMemRelease, cuMemRelease, (uint64_t), other));
    charged("end");
}

/* One piece of physical memory that is larger than what fits, as regions of XLA are: mapped as a whole, then in part. */
static void large(int in_part) {
    static unsigned char found[144 * MIB];
    static const access_desc all = {{1, 0}, 3};
    const size_t bytes = 144 * MIB;
    prop here, told;
    ptr range = 0, begin = 0;
    size_t size = 0, wrong = 0;
    uint64_t handle = 0, again = 0;
    char line[16];
    int descriptor = -1;
    start();
    memset(&here, 0, sizeof here);
    memset(&told, 0, sizeof told);
    here.kind = here.place.kind = here.types = 1;
    SAY("reserve", CALL(cuMemAddressReserve, cuMemAddressReserve, (ptr *, size_t, size_t, ptr, uint64_t), &range, 2 * bytes, 0, 0, 0));
    SAY("create", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &handle, bytes, &here, 0));
    SAY("properties", CALL(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, (prop *, uint64_t), &told, handle));
    printf("as asked: %d\n", told.kind == 1 && told.place.kind == 1 && told.place.id == 0);
    SAY("map with an offset", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range, 2 * MIB, 2 * MIB, handle, 0));
    SAY("map too much", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range, bytes + 2 * MIB, 0, handle, 0));
    SAY("map", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range, bytes, 0, handle, 0));
    SAY("access", CALL(cuMemSetAccess, cuMemSetAccess, (ptr, size_t, const access_desc *, size_t), range, bytes, &all, 1));
    SAY("export", CALL(cuMemExportToShareableHandle, cuMemExportToShareableHandle, (void *, uint64_t, int, uint64_t), &descriptor, handle, 1, 0));
    SAY("retain", CALL(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, (uint64_t *, void *), &again, (void *)(range + 70 * MIB)));
    printf("the same handle: %d\n", again == handle);
    SAY("release", CALL(cuMemRelease, cuMemRelease, (uint64_t), again));
    SAY("release", CALL(cuMemRelease, cuMemRelease, (uint64_t), handle));
    SAY("release too often", CALL(cuMemRelease, cuMemRelease, (uint64_t), handle));
    CALL(cuMemGetAddressRange, cuMemGetAddressRange_v2, (ptr *, size_t *, ptr), &begin, &size, range + 100 * MIB);
    printf("whole: %d\n", begin == range && size == bytes);
    for (size_t i = 0; i < bytes; i++) found[i] = (unsigned char)(i / 4099);
    SAY("write", CALL(cuMemcpyHtoD, cuMemcpyHtoD_v2, (ptr, const void *, size_t), range, found, bytes));
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        memset(found, 0, bytes);
        SAY("read", CALL(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, ptr, size_t), found, range, bytes));
        for (size_t i = 0; i < bytes; i++) wrong += found[i] != (unsigned char)(i / 4099);
        printf("wrong: %zu\nlooked\n", wrong);
        fflush(stdout);
    }
    SAY("unmap", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range, bytes));
    charged("end");
    if (!in_part) return;
    cut(range, bytes, &here);
    /* Its beginning, to the middle of a piece. */
    SAY("create", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &handle, bytes, &here, 0));
    SAY("map", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range, 52 * MIB, 0, handle, 0));
    SAY("access", CALL(cuMemSetAccess, cuMemSetAccess, (ptr, size_t, const access_desc *, size_t), range, 52 * MIB, &all, 1));
    SAY("fill", CALL(cuMemsetD8, cuMemsetD8_v2, (ptr, unsigned char, size_t), range, 7, 52 * MIB));
    SAY("unmap", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range, 52 * MIB));
    SAY("release", CALL(cuMemRelease, cuMemRelease, (uint64_t), handle));
    SAY("other than refused", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &handle, 300 * MIB, &here, 0) != 2);
    charged("end");
}

/* Memory that is mapped twice, then once, is the same memory whatever becomes of it. */
static void mapped_twice(void) {
    static const access_desc all = {{1, 0}, 3};
    const size_t bytes = 2 * MIB;
    prop here;
    ptr range = 0;
    uint64_t first = 0, handle = 0;
    uint32_t found = 0;
    int descriptor = -1;
    start();
    memset(&here, 0, sizeof here);
    here.kind = here.place.kind = here.types = 1;
    SAY("reserve", CALL(cuMemAddressReserve, cuMemAddressReserve, (ptr *, size_t, size_t, ptr, uint64_t), &range, 2 * bytes, 0, 0, 0));
    SAY("create what fits", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &first, 2 * bytes, &here, 0));
    SAY("create", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &handle, bytes, &here, 0));
    for (int i = 0; i < 2; i++) SAY("map", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range + (size_t)i * bytes, bytes, 0, handle, 0));
    SAY("access", CALL(cuMemSetAccess, cuMemSetAccess, (ptr, size_t, const access_desc *, size_t), range, 2 * bytes, &all, 1));
    SAY("write", CALL(cuMemcpyHtoD, cuMemcpyHtoD_v2, (ptr, const void *, size_t), range, &(uint32_t){77}, 4));
    SAY("unmap one", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range + bytes, bytes));
    SAY("release what fits", CALL(cuMemRelease, cuMemRelease, (uint64_t), first));
    SAY("export", CALL(cuMemExportToShareableHandle, cuMemExportToShareableHandle, (void *, uint64_t, int, uint64_t), &descriptor, handle, 1, 0));
    SAY("map again", CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), range + bytes, bytes, 0, handle, 0));
    SAY("access", CALL(cuMemSetAccess, cuMemSetAccess, (ptr, size_t, const access_desc *, size_t), range, 2 * bytes, &all, 1));
    SAY("read", CALL(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, ptr, size_t), &found, range + bytes, 4));
    printf("found: %u\n", found);
    SAY("unmap both", CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), range, 2 * bytes));
    SAY("release", CALL(cuMemRelease, cuMemRelease, (uint64_t), handle));
    charged("end");
}
