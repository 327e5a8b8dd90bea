/* Many threads at random. */

/* Random memory of every kind, its content looked at all along, while calls fail now and then. */
struct piece { int kind; unsigned char value; size_t bytes; ptr address, range; uint64_t handle; };

static void check(struct piece *one) {
    unsigned char found[2] = {0, 0};
    CALL(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, ptr, size_t), found, one->address, 1);
    CALL(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, ptr, size_t), found + 1, one->address + one->bytes - 1, 1);
    if (found[0] != one->value || found[1] != one->value) { printf("kind %d holds %d and %d for %d\n", one->kind, found[0], found[1], one->value); exit(1); }
}

static void stress_free(struct piece *one) {
    int code = 1;
    /* A call that fails for no reason is made again, as often as it takes. */
    if (one->kind == 1) while (CALL(cuMemFree, cuMemFree_v2, (ptr), one->address)) {}
    else if (one->kind == 2) while (CALL(cuMemFreeAsync, cuMemFreeAsync, (ptr, ptr), one->address, 0)) {}
    else if (one->kind == 3) {
        while ((code = CALL(cuMemUnmap, cuMemUnmap, (ptr, size_t), one->range, one->bytes))) {}
        while (CALL(cuMemRelease, cuMemRelease, (uint64_t), one->handle)) {}
        CALL(cuMemAddressFree, cuMemAddressFree, (ptr, size_t), one->range, one->bytes);
    }
    one->kind = 0;
}

static void stress_allocate(struct piece *one, unsigned dice) {
    static const access_desc all = {{1, 0}, 3};
    prop here;
    memset(&here, 0, sizeof here);
    here.kind = here.place.kind = 1;
    int kind = 1 + (int)(dice % 3);
    one->value = (unsigned char)(dice >> 8);
    one->bytes = kind == 3 ? 2 * MIB : 100 + dice % 100000;
    if (kind == 1 && CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &one->address, one->bytes)) return;
    if (kind == 2 && CALL(cuMemAllocAsync, cuMemAllocAsync, (ptr *, size_t, ptr), &one->address, one->bytes, 0)) return;
    if (kind == 3) {
        if (CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &one->handle, one->bytes, &here, 0)) return;
        CALL(cuMemAddressReserve, cuMemAddressReserve, (ptr *, size_t, size_t, ptr, uint64_t), &one->range, one->bytes, 0, 0, 0);
        while (CALL(cuMemMap, cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t), one->range, one->bytes, 0, one->handle, 0)) {}
        CALL(cuMemSetAccess, cuMemSetAccess, (ptr, size_t, const access_desc *, size_t), one->range, one->bytes, &all, 1);
        one->address = one->range;
    }
    one->kind = kind;
    CALL(cuMemsetD8, cuMemsetD8_v2, (ptr, unsigned char, size_t), one->address, one->value, one->bytes);
}

static void *stress_thread(void *seed) {
    struct piece pieces[24];
    unsigned dice = (unsigned)(uintptr_t)seed;
    memset(pieces, 0, sizeof pieces);
    CALL(cuCtxSetCurrent, cuCtxSetCurrent, (ptr), context);
    for (int i = 0; i < 420; i++) {
        dice = dice * 1664525 + 1013904223;
        struct piece *one = &pieces[(dice >> 16) % 24];
        if (one->kind) { check(one); stress_free(one); }
        else stress_allocate(one, dice >> 4);
    }
    for (int i = 0; i < 24; i++) if (pieces[i].kind) { check(&pieces[i]); stress_free(&pieces[i]); }
    return NULL;
}

static void stress(void) {
    static const char *const failing[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap"};
    int (*control)(const char *) = dlsym(library, "gpuheap_fake_control");
    pthread_t all[8];
    start();
    for (uintptr_t i = 0; i < 8; i++) pthread_create(&all[i], NULL, stress_thread, (void *)(i * 7919 + 1));
    for (int i = 0; i < 200; i++) {
        char command[64];
        snprintf(command, sizeof command, "fail %s %d %d", failing[i % 8], 1 + i % 5, i % 2 ? 2 : 999);
        control(command);
        usleep(200);
    }
    for (int i = 0; i < 8; i++) pthread_join(all[i], NULL);
    control("reset");
    SAY("synchronize", CALL(cuCtxSynchronize, cuCtxSynchronize, (ptr), context));
    charged("end");
}

