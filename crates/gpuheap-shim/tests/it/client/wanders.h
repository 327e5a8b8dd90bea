/* More memory than there is, used in no order: chunks come when kernels want them, and others go. */

/* Until so many came, and some in one exchange: beside mappings. */
static void wander(struct moving *pieces, int count, ptr stream, uint64_t enough, int together) {
    struct timespec begun, now;
    uint64_t before = happened("copies in");
    unsigned dice = 1;
    int is_enough = 0;
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
        is_enough = happened("copies in") - before >= enough && (!together || happened("host mapped beside copies in"));
    } while (!is_enough && now.tv_sec - begun.tv_sec < 40);
    printf("came: %s\n", is_enough ? "enough" : "few");
}

static void wanders(const char *path) {
    int (*control)(const char *) = dlsym(library, "gpuheap_fake_control");
    struct moving pieces[12];
    ptr stream = 0;
    fill_pieces(path, pieces, 12, &stream);
    control("delay 50");
    for (int turn = 0; turn < 2; turn++) {
        wander(pieces, 12, stream, 8, turn);
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

/* The same again and again with more memory than there is, most of it only looked at: what leaves is copied ahead. A child of
   it, a recording, memory that is freed and a nap of the process change nothing. */
static void repeats(const char *path) {
    struct moving pieces[100];
    struct timespec begun, now;
    ptr stream = 0, graph = 0;
    unsigned rounds = 0;
    int is_ahead = 0, (*control)(const char *) = dlsym(library, "gpuheap_fake_control");
    start();
    load_kernels(path);
    CALL(cuStreamCreate, cuStreamCreate, (ptr *, unsigned), &stream, 1);
    for (int i = 0; i < 100; i++) {
        pieces[i] = (struct moving){.bytes = 2 * MIB, .value = 100 * (uint32_t)i};
        if (CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &pieces[i].address, pieces[i].bytes)) exit(8);
        struct launch fill = {fill_kernel, pieces[i].address, stream, WORDS(pieces[i].bytes), pieces[i].value};
        if (launch(&fill)) exit(9);
    }
    puts("ready");
    fflush(stdout);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        for (int i = 0; i < 100; i++) {
            /* Of each tenth all is written, at last. */
            struct launch add = {add_kernel, pieces[i].address, stream, 16, 0};
            /* No two launches of a round are alike: so it is known by any of them where in it the program is. */
            for (int again = 0; again < 9; again++, add.address += 4096) if (launch(&add)) exit(10);
            add.address = pieces[i].address + MIB;
            if (i % 10 == 0) { add.address = pieces[i].address; add.count = WORDS(pieces[i].bytes); add.value = 1; pieces[i].value++; }
            if (launch(&add)) exit(11);
        }
        wait_for(&stream);
        if (++rounds % 16 == 0) {
            /* What only the library calls here, or what does not matter. */
            static const char *const failing[] = {"cuMemcpyDtoDAsync_v2", "cuStreamSynchronize", "cuEventRecord", "cuEventSynchronize"};
            char command[64];
            snprintf(command, sizeof command, "fail %s %u 999 %u", failing[rounds / 16 % 4], 1 + rounds / 64 % 9, 1 + rounds / 32 % 3);
            control(command);
            pid_t child = fork();
            if (child == 0) _exit(0);
            waitpid(child, NULL, 0);
            struct moving *one = &pieces[rounds / 16 % 100];
            moving_look(one);
            moving_free(one);
            if (CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &one->address, one->bytes)) exit(12);
            struct launch fill = {fill_kernel, one->address, stream, WORDS(one->bytes), one->value};
            if (launch(&fill)) exit(13);
            if (CALL(cuStreamBeginCapture, cuStreamBeginCapture_v2, (ptr, unsigned), stream, 0)) exit(14);
            fill.value++;
            if (launch(&fill)) exit(15);
            if (CALL(cuStreamEndCapture, cuStreamEndCapture, (ptr, ptr *), stream, &graph)) exit(16);
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        /* Whether a plan is followed that long is a matter of times, which mean little here. */
        if (!is_ahead && (happened("found the same") > 0 || now.tv_sec - begun.tv_sec >= 10)) {
            is_ahead = 1;
            begun = now;
            puts("ahead");
            fflush(stdout);
        }
    } while (now.tv_sec - begun.tv_sec < (is_ahead ? 4 : 60));
    printf("%llu found the same, %llu not, %u rounds\n", (unsigned long long)happened("found the same"), (unsigned long long)happened("found different"), rounds);
    for (int i = 0; i < 100; i++) {
        moving_look(&pieces[i]);
        moving_free(&pieces[i]);
    }
    puts("looked");
    fflush(stdout);
    while (getchar() != EOF) {}
}
