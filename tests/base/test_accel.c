/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_accel.c - the list of accelerators: which one owns the memory behind a pointer, and that its
 * users are closed before it.
 */
#include "base/unit.h"

#include "base/compute/accel.h"

typedef struct fake_accel {
    accel base;
    char memory[64];
} fake_accel;

typedef struct fake_user {
    accel_user base;
    accel *owner; /* of the user's memory */
    int closed;
} fake_user;

static accel_owner owner(accel *self, const void *p)
{
    const fake_accel *a = (const fake_accel *)(void *)self;

    return (const char *)p >= a->memory && (const char *)p < a->memory + sizeof(a->memory)
               ? ACCEL_OWN
               : ACCEL_OTHER;
}

static const accel_ops fake_ops = {.name = "fake", .owner = owner};

static void close_user(accel_user *self)
{
    fake_user *u = (fake_user *)(void *)self;

    u->closed++;
    // The accelerator is still in use.
    assert_ptr_equal(accel_of(((fake_accel *)(void *)u->owner)->memory), u->owner);
}

static void memory_belongs_to_the_accelerator_that_owns_it(void **state)
{
    fake_accel a = {.base = {.ops = &fake_ops}};
    fake_accel b = {.base = {.ops = &fake_ops}};

    LS_UNUSED(state);
    assert_null(accel_of(a.memory));
    accel_register(&a.base);
    accel_register(&b.base);
    assert_ptr_equal(accel_of(a.memory), &a.base);
    assert_ptr_equal(accel_of(b.memory + 63), &b.base);
    assert_null(accel_of(&a.base));
    assert_null(accel_of(NULL));
    accel_unregister(&a.base);
    assert_null(accel_of(a.memory));
    assert_ptr_equal(accel_of(b.memory), &b.base);
    accel_unregister(&b.base);
    assert_null(accel_of(b.memory));
}

static void users_are_closed_before_their_accelerator(void **state)
{
    fake_accel a = {.base = {.ops = &fake_ops}};
    fake_user users[3];

    LS_UNUSED(state);
    accel_register(&a.base);
    for (int i = 0; i < 3; i++) {
        users[i] = (fake_user){.base = {.close = close_user}, .owner = &a.base};
        accel_add_user(&a.base, &users[i].base);
    }
    accel_remove_user(&a.base, &users[1].base);
    accel_unregister(&a.base);
    assert_int_equal(users[0].closed, 1);
    assert_int_equal(users[1].closed, 0);
    assert_int_equal(users[2].closed, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_belongs_to_the_accelerator_that_owns_it),
        cmocka_unit_test(users_are_closed_before_their_accelerator),
    };

    return cmocka_run_group_tests_name("accelerators", tests, NULL, NULL);
}
