/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kill.c - a process that saves over and over is killed at random moments; what stands at the
 * path always loads, and is one whole save. LS_TEST_ROUNDS sets the number of rounds.
 */
#include "base/unit.h"

#include <lockstep/checkpoint.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/text.h"
#include "data/temp_files.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_ITEMS         4
#define ITEM_BYTES      (256 * 1024)
#define KILLS_PER_ROUND 8
#define LONGEST_MS      40

static temp_folder folder;
static char path[TEMP_PATH_BYTES];
static unsigned char contents[N_ITEMS][ITEM_BYTES];
static ls_named items[N_ITEMS];

/* Saves with every byte `generation`. */
static ls_status save(unsigned char generation)
{
    memset(contents, generation, sizeof(contents));
    return ls_checkpoint_save(path, items, N_ITEMS, NULL, 0);
}

static void save_in_a_loop(void)
{
    for (unsigned char generation = 1;; generation++) {
        if (save(generation) != LS_OK)
            _exit(1);
    }
}

static void assert_one_generation(void)
{
    ls_checkpoint *c;

    memset(contents, 0xAA, sizeof(contents));
    contents[0][0] = 0x55;
    assert_ok(ls_checkpoint_open(path, &c));
    assert_ok(ls_checkpoint_load(c, items, N_ITEMS, LS_LOAD_STRICT));
    ls_checkpoint_close(c);
    // Every byte equals its neighbour.
    assert_memory_equal((unsigned char *)contents, (unsigned char *)contents + 1,
                        sizeof(contents) - 1);
}

static void kill_a_saver(int after_ms)
{
    int status;
    const pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0)
        save_in_a_loop();
    (void)poll(NULL, 0, after_ms);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void a_kill_while_saving_leaves_the_old_or_the_new_file(void **state)
{
    const char *rounds_text = getenv("LS_TEST_ROUNDS");
    const uint64_t seed = (uint64_t)ls_now_ns();
    int64_t rounds = 3;
    ls_rng rng;

    LS_UNUSED(state);
    if (rounds_text != NULL)
        assert_ok(text_parse_int(rounds_text, "LS_TEST_ROUNDS", 1, 1000, &rounds));
    print_message("seed %llu\n", (unsigned long long)seed);
    ls_rng_seed(&rng, seed);
    assert_ok(save(0));
    for (int64_t i = 0; i < rounds * KILLS_PER_ROUND; i++) {
        kill_a_saver((int)ls_rng_below(&rng, LONGEST_MS));
        assert_one_generation();
    }
    // Files of killed savers do not prevent the next save.
    assert_ok(save(9));
    assert_one_generation();
}

static int set_up(void **state)
{
    static const char *const names[N_ITEMS] = {"a", "b", "c", "d"};

    LS_UNUSED(state);
    temp_folder_create(&folder);
    (void)temp_path(&folder, "model.safetensors", path);
    for (int i = 0; i < N_ITEMS; i++)
        items[i] = (ls_named){.name = names[i], .bytes = contents[i], .n_bytes = ITEM_BYTES};
    return 0;
}

static int clean_up(void **state)
{
    LS_UNUSED(state);
    temp_folder_remove(&folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kill_while_saving_leaves_the_old_or_the_new_file),
    };

    return cmocka_run_group_tests(tests, set_up, clean_up);
}
