/* More memory than there is, used in no order: chunks come when kernels want them, and others go. */

static uint64_t happened(const char *what) {
    uint64_t (*count)(const char *) = dlsym(library, "gpuheap_fake_calls");
    return count(what);
}

/* Until so many came. */
static void wander(struct moving *pieces, int count, ptr stream, uint64_t enough) {
    struct timespec begun, now;
    uint64_t before = happened("copies in");
    unsigned dice = 1;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        dice = dice * 1664525 + 1013904223;
        int chosen[3] = {(int)(dice >> 10) % count, (int)(dice >> 17) % count, (int)(dice >> 24) % count};
        for (int i = 0; i < 3; i++) {
            struct moving *one = &pieces[chosen[i]];
            struct launch add = {add_kernel, one->address, stream, WORDS(one->bytes), 1};
            if (launch(&add)) exit(8);
            one->value++;
            add.count = 16;
            add.value = 0;
            for (int again = 0; again < 29; again++) launch(&add);
        }
        wait_for(&stream);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (happened("copies in") - before < enough && now.tv_sec - begun.tv_sec < 40);
    printf("came: %s\n", happened("copies in") - before < enough ? "few" : "enough");
}

static void wanders(const char *path) {
    int (*control)(const char *) = dlsym(library, "gpuheap_fake_control");
    struct moving pieces[12];
    ptr stream = 0;
    fill_pieces(path, pieces, 12, &stream);
    control("delay 50");
    for (int turn = 0; turn < 2; turn++) {
        wander(pieces, 12, stream, 8);
        for (int i = 0; i < 12; i++) moving_look(&pieces[i]);
        if (turn) break;
        /* All of it goes with the context, what the library keeps in it as well. */
        SAY("reset", CALL(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (int), 0));
        control("delay 0");
        fill_pieces(path, pieces, 12, &stream);
        control("delay 50");
    }
    for (int i = 0; i < 12; i++) moving_free(&pieces[i]);
    printf("streams: %llu\n", (unsigned long long)happened("cuStreamCreate"));
    printf("went: %s\n", happened("copies out") > 8 ? "some" : "few");
    printf("beside copies in: %s\n", happened("host mapped beside copies in") ? "some" : "none");
    printf("beside copies out: %llu\n", (unsigned long long)happened("host mapped beside copies out"));
    charged("end");
}
