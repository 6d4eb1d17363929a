/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top_screen.c - the live table of lockstep top on a terminal, by ncursesw: the only file that
 * includes it. Lines that do not fit are cut, at any size of the terminal.
 */
#include "cli/top/top.h"

#include "base/alloc.h"
#include "base/clock.h"

#ifdef LOCKSTEP_NCURSES

#include <curses.h>
#include <locale.h>
#include <string.h>
#include <unistd.h>

typedef enum screen_body { SHOWS_RANKS, SHOWS_OPERATIONS, SHOWS_PAIRS, SHOWS_HELP } screen_body;

typedef struct screen {
    status_client *client;
    SCREEN *terminal;
    int64_t interval_ms;
    top_key key;
    job_status *now;
    job_status *before;
    top_entry *order;
    top_pair *pairs;
    int selected; /* position in the table */
    int first;    /* position of the first row on the screen */
    screen_body body;
} screen;

enum { HEAD_LINES = 4, FOOT_LINES = 1 };

static const char help_text[] =
    "up, down   choose a rank\n"
    "Enter, o   last operations of that rank, and back\n"
    "p          bytes a second from rank to rank, and back\n"
    "s          sort by the next key: rank, step-time, data, communication, memory, late\n"
    "h          this text, and back\n"
    "q          quit\n"
    "!          another rank waits for this rank since one second or longer";

static int chosen_rank(const screen *s)
{
    return s->selected < s->now->n_ranks ? s->now->ranks[s->order[s->selected].index].rank : -1;
}

/* One line, cut to the width. */
static void put_line(int y, const char *text, attr_t style)
{
    if (y < 0 || y >= LINES)
        return;
    // First: a text that fills its line leaves the cursor in the next one.
    (void)move(y, 0);
    (void)clrtoeol();
    (void)attrset(style);
    (void)mvaddnstr(y, 0, text, COLS);
    (void)attrset(A_NORMAL);
}

/* The lines of a text from row y on; returns the row behind them. */
static int put_lines(int y, const text_buf *text)
{
    const char *line = text_str(text);

    while (*line != '\0') {
        char cut[512];
        const size_t n = strcspn(line, "\n");

        text_format(cut, sizeof(cut), "%.*s", (int)(n < sizeof(cut) ? n : sizeof(cut) - 1), line);
        put_line(y++, cut, A_NORMAL);
        line += n + (line[n] == '\n');
    }
    return y;
}

static void put_ranks(screen *s, int y)
{
    const top_times t = {.before = s->before->n_ranks > 0 ? s->before : NULL, .now = s->now};
    const int n_rows = LINES - y - FOOT_LINES;

    if (s->selected < s->first)
        s->first = s->selected;
    if (n_rows > 0 && s->selected >= s->first + n_rows)
        s->first = s->selected - n_rows + 1;
    for (int i = s->first; i < s->now->n_ranks && i < s->first + n_rows; i++) {
        text_buf row = {0};
        const bool is_late = s->now->ranks[s->order[i].index].is_late;

        top_row(&t, s->order[i].index, &row);
        put_line(y++, text_str(&row),
                 (i == s->selected ? A_REVERSE : A_NORMAL) | (is_late ? A_BOLD : A_NORMAL));
        text_free(&row);
    }
}

static void put_operations(const screen *s, int y)
{
    const job_status *v = s->now;
    const int n_rows = LINES - y - FOOT_LINES;

    for (int i = v->n_operations > n_rows ? v->n_operations - n_rows : 0; i < v->n_operations;
         i++) {
        text_buf row = {0};

        top_operation(&v->operations[i], &row);
        put_line(y++, text_str(&row), A_NORMAL);
        text_free(&row);
    }
    if (v->n_operations == 0)
        put_line(y, "no operations: the program has not started one, or does not use Lockstep",
                 A_NORMAL);
}

static void put_pairs(const screen *s, int y)
{
    const top_times t = {.before = s->before->n_ranks > 0 ? s->before : NULL, .now = s->now};
    const int n = top_pairs(&t, s->pairs);
    const int n_rows = LINES - y - FOOT_LINES;

    for (int i = 0; i < n && i < n_rows; i++) {
        text_buf row = {0};

        top_pair_row(&s->pairs[i], &row);
        put_line(y++, text_str(&row), A_NORMAL);
        text_free(&row);
    }
    if (n == 0)
        put_line(y, top_no_pairs, A_NORMAL);
}

static void put_help(int y)
{
    text_buf text = {0};

    text_append(&text, "%s", help_text);
    (void)put_lines(y, &text);
    text_free(&text);
}

static void put_body(screen *s, int y)
{
    text_buf head = {0};

    switch (s->body) {
    case SHOWS_RANKS:
        top_columns(s->now, &head);
        put_ranks(s, y + 1);
        break;
    case SHOWS_OPERATIONS:
        text_append(&head, "last operations of rank %d: duration, bytes, operation",
                    chosen_rank(s));
        put_operations(s, y + 1);
        break;
    case SHOWS_PAIRS:
        top_pair_columns(&head);
        put_pairs(s, y + 1);
        break;
    case SHOWS_HELP:
        text_append(&head, "keys");
        put_help(y + 1);
        break;
    }
    put_line(y, text_str(&head), A_UNDERLINE);
    text_free(&head);
}

static void draw(screen *s)
{
    text_buf text = {0};
    int y;

    (void)erase();
    top_head(s->now, &text);
    top_warning(s->now, &text);
    y = put_lines(0, &text);
    text_free(&text);
    put_body(s, y < HEAD_LINES - 1 ? HEAD_LINES - 1 : y);
    text_append(&text, "q quit  s sort: %s  Enter operations  p pairs  h help",
                top_key_names[s->key]);
    put_line(LINES - 1, text_str(&text), A_DIM);
    text_free(&text);
    (void)refresh();
}

/* A new status; the last one becomes `before`. */
static ls_status update(screen *s)
{
    const int rank = s->body == SHOWS_OPERATIONS ? chosen_rank(s) : -1;
    job_status *old = s->before;
    size_t n;

    job_status_free(old);
    s->before = s->now;
    s->now = old;
    LS_TRY(status_client_ask(s->client, rank, ls_deadline_ms(TOP_ANSWER_MS), s->now));
    n = (size_t)s->now->n_ranks + 1;
    LS_TRY(LS_RESIZE(&s->order, n, "for the table of ranks"));
    return LS_RESIZE(&s->pairs, n * STATUS_SOURCES, "for the table of ranks");
}

static void sort(screen *s)
{
    const top_times t = {.before = s->before->n_ranks > 0 ? s->before : NULL, .now = s->now};

    top_sort(&t, s->key, s->order);
    if (s->selected >= s->now->n_ranks)
        s->selected = s->now->n_ranks > 0 ? s->now->n_ranks - 1 : 0;
}

/* Shows it, or the ranks again. */
static void toggle(screen *s, screen_body body)
{
    s->body = s->body == body ? SHOWS_RANKS : body;
}

/* False: quit. *is_stale: a new status is needed. */
static bool handle_key(screen *s, int key, bool *is_stale)
{
    switch (key) {
    case 'q':
        return false;
    case 's':
        s->key = (s->key + 1) % TOP_KEYS;
        break;
    case 'h':
    case '?':
        toggle(s, SHOWS_HELP);
        break;
    case '\n':
    case '\r':
    case KEY_ENTER:
    case 'o':
        toggle(s, SHOWS_OPERATIONS);
        *is_stale = true;
        break;
    case 'p':
        toggle(s, SHOWS_PAIRS);
        break;
    case KEY_UP:
    case 'k':
        s->selected -= s->selected > 0;
        break;
    case KEY_DOWN:
    case 'j':
        s->selected += s->selected + 1 < s->now->n_ranks;
        break;
    default:
        break;
    }
    return true;
}

static ls_status show(screen *s)
{
    bool goes_on = true;

    LS_TRY(update(s));
    while (goes_on) {
        const int64_t next_ms = ls_deadline_ms(s->interval_ms);
        bool is_stale = false;

        while (goes_on && !is_stale && ls_deadline_left(next_ms) > 0) {
            int key;

            sort(s);
            draw(s);
            timeout(ls_deadline_left(next_ms));
            key = getch();
            if (key != ERR)
                goes_on = handle_key(s, key, &is_stale);
            else
                goes_on = isatty(STDIN_FILENO) == 1; // a terminal that has hung up has no end
        }
        if (goes_on)
            LS_TRY(update(s));
    }
    return LS_OK;
}

ls_status top_screen(status_client *c, int64_t interval_ms, top_key key, bool shows_pairs)
{
    screen s = {.client = c,
                .interval_ms = interval_ms,
                .key = key,
                .body = shows_pairs ? SHOWS_PAIRS : SHOWS_RANKS};
    ls_status st;

    if (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1)
        return ls_fail(LS_EUNSUPPORTED, "the live view needs a terminal: use --once");
    (void)setlocale(LC_ALL, ""); // NOLINT(concurrency-mt-unsafe): there is one thread
    s.now = ls_calloc(1, sizeof(*s.now));
    s.before = ls_calloc(1, sizeof(*s.before));
    if (s.now == NULL || s.before == NULL) {
        ls_free(s.now);
        ls_free(s.before);
        return ls_fail(LS_ENOMEM, "no memory for the status of a job");
    }
    s.terminal = newterm(NULL, stdout, stdin);
    if (s.terminal == NULL) {
        st = ls_fail(LS_EUNSUPPORTED,
                     "the terminal cannot show the live view: check TERM, or use --once");
    } else {
        (void)cbreak();
        (void)noecho();
        (void)keypad(stdscr, TRUE);
        (void)curs_set(0);
        st = show(&s);
        (void)endwin();
        delscreen(s.terminal);
    }
    job_status_free(s.now);
    job_status_free(s.before);
    ls_free(s.now);
    ls_free(s.before);
    ls_free(s.order);
    ls_free(s.pairs);
    return st;
}

#else

ls_status top_screen(status_client *c, int64_t interval_ms, top_key key, bool shows_pairs)
{
    LS_UNUSED(c);
    LS_UNUSED(interval_ms);
    LS_UNUSED(key);
    LS_UNUSED(shows_pairs);
    return ls_fail(LS_EUNSUPPORTED, "this lockstep was built without ncursesw, so it has no live "
                                    "view; lockstep top --once prints the same once");
}

#endif
