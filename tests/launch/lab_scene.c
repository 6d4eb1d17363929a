/* SPDX-License-Identifier: Apache-2.0 */
/* lab_scene.c - machines made of network namespaces, for tests with several networks. */
#include "launch/lab_scene.h"

#include "net/key.h"

#include <unistd.h>

netlab lab;
char lab_variable[64];
char key_variable[96];
static char key_file[64];

void lab_build(int n_nodes, const char *options)
{
    const int code = netlab_up(&lab, n_nodes, options);

    if (code == NETLAB_SKIPPED)
        skip();
    assert_int_equal(code, 0);
    text_format(lab_variable, sizeof(lab_variable), "LS_NETLAB=%s", lab.name);
}

int lab_clean_up(void **state)
{
    netlab_down(&lab);
    return job_clean_up(state);
}

int lab_make_key(void **state)
{
    net_key key;

    LS_UNUSED(state);
    text_format(key_file, sizeof(key_file), "/tmp/lockstep-lab-key-%d", (int)getpid());
    text_format(key_variable, sizeof(key_variable), NET_KEY_FILE_ENV "=%s", key_file);
    assert_int_equal(net_key_random(&key), LS_OK);
    assert_int_equal(net_key_write_file(key_file, &key), LS_OK);
    return 0;
}

int lab_remove_key(void **state)
{
    LS_UNUSED(state);
    (void)unlink(key_file);
    return 0;
}
