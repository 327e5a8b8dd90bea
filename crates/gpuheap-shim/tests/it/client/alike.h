/* Steps that are alike and not the same: weights stay where they are, and each step takes other pieces for what its layers
   keep until they are met again in reverse. All that would not fit at once. */

enum { WEIGHTS = 8, KEPT = 16 };

/* A piece is used by one kernel as a whole, and by as many more as a layer has in its first page. */
static void use_piece(struct moving *one, ptr stream) {
    struct launch add = {add_kernel, one->address, stream, WORDS(one->bytes), 1};
    if (launch(&add)) exit(8);
    one->value++;
    add.count = 16;
    add.value = 0;
    for (int again = 0; again < 19; again++) launch(&add);
}

static void alike(const char *path) {
    struct moving pieces[WEIGHTS + KEPT], *kept = pieces + WEIGHTS;
    int order[KEPT];
    struct timespec begun, now;
    ptr stream = 0;
    uint32_t steps = 0;
    unsigned dice = 1;
    fill_pieces(path, pieces, WEIGHTS + KEPT, &stream);
    for (int i = 0; i < KEPT; i++) order[i] = i;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        for (int i = KEPT - 1; i > 0; i--) {
            dice = dice * 1664525 + 1013904223;
            int other = (int)((dice >> 8) % (unsigned)(i + 1)), former = order[i];
            order[i] = order[other];
            order[other] = former;
        }
        for (int layer = 0; layer < WEIGHTS; layer++) {
            use_piece(&pieces[layer], stream);
            use_piece(&kept[order[layer]], stream);
        }
        for (int layer = WEIGHTS; layer-- > 0;) {
            use_piece(&kept[order[layer]], stream);
            use_piece(&pieces[layer], stream);
        }
        wait_for(&stream);
        steps++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begun.tv_sec < 4);
    for (int i = 0; i < WEIGHTS + KEPT; i++) {
        moving_look(&pieces[i]);
        moving_free(&pieces[i]);
    }
    printf("steps: %s\n", steps > 5 ? "some" : "few");
    charged("end");
}
