/* SPDX-License-Identifier: Apache-2.0 */
/* check_scene.c - a simulated machine, its check, and what the check must have found. */
#include "diagnose/check_scene.h"

fake_machine machine;
check_options options;
findings found;
bool seen[FINDING_KIND_COUNT];

int check_begin(void **state)
{
    LS_UNUSED(state);
    fake_start(&machine);
    options = (check_options){.several_nodes = true, .sources = &machine.sources};
    return 0;
}

int check_end(void **state)
{
    LS_UNUSED(state);
    findings_free(&found);
    fake_end(&machine);
    return 0;
}

void look(void)
{
    findings_free(&found);
    assert_ok(check_all(&options, &found));
    for (int i = 0; i < found.n; i++) {
        const finding *f = &found.items[i];
        seen[f->kind] = true;
        assert_true(f->what[0] != 0);
        assert_null(strpbrk(f->what, "\033\n"));
        if (f->severity != FINDING_OK)
            assert_true(f->fix[0] != 0 || f->kind == FINDING_KEY_MISSING_KIND);
        if (f->severity > FINDING_NOTE)
            assert_true(finding_why(f->kind)[0] != 0);
    }
}

bool has(finding_kind kind)
{
    for (int i = 0; i < found.n; i++)
        if (found.items[i].kind == kind)
            return true;
    return false;
}

const finding *get(finding_kind kind)
{
    static const finding none = {0};

    for (int i = 0; i < found.n; i++)
        if (found.items[i].kind == kind)
            return &found.items[i];
    fail_msg("no %s", finding_id(kind));
    return &none;
}

void expect(finding_kind kind, finding_severity severity, const char *what, const char *fix)
{
    const finding *f;

    look();
    f = get(kind);
    if (f->severity != severity || strstr(f->what, what) == NULL || strstr(f->fix, fix) == NULL)
        fail_msg("%s %s: %s; %s", finding_severity_text(f->severity), finding_id(kind), f->what,
                 f->fix);
    for (int i = 0; i < found.n; i++)
        if (found.items[i].severity > FINDING_OK && found.items[i].kind != kind)
            fail_msg("also %s: %s", finding_id(found.items[i].kind), found.items[i].what);
}
