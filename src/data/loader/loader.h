/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader.h - the members of an ls_loader, for the files that implement it: loader.c (options and
 * life), loader_slots.c (memory of batches), loader_threads.c (reading ahead), loader_host.c and
 * loader_device.c (the next batch).
 *
 * Batch k of an epoch uses slot k % n_slots. When the slot is free, the caller's thread gives it
 * memory of the batch's size, and threads fill the batch in pieces of a few rows; the last piece
 * makes the slot ready. Threads write plain memory; tensors are touched by the caller's thread
 * only. A row depends on its index alone, so the order and the number of threads do not matter.
 *
 * data/loader/: the loader, behind <lockstep/data.h>.
 */
#ifndef LS_DATA_LOADER_LOADER_H
#define LS_DATA_LOADER_LOADER_H

#include "base/thread.h"
#include "data/loader/batch_memory.h"
#include "data/loader/device_batches.h"
#include "data/loader/row.h"

typedef struct batch_slot {
    batch_memory memory; /* of a full batch; not with a stream device */
    batch_rows rows;
    size_t *indices;      /* of each row, written by the thread that reads it, as the next one */
    uint8_t *is_left_out; /* of each row */
    size_t n_rows;        /* of the batch that the slot is for */

    // Under the lock until the slot is ready.
    bool is_ready;
    size_t rows_done;
    size_t n_left; /* rows of the ready batch, without those that are left out */
    size_t n_bad;
    size_t failed_row; /* the first one: its failure is the batch's */
    ls_status status;
    char error[LS_ERROR_BYTES];
} batch_slot;

typedef struct loader_thread {
    ls_loader *loader;
    ls_thread thread;
    row_reader reader;
} loader_thread;

/* What the batch that ls_loader_next() returned refers to. */
typedef struct batch_facts {
    const size_t *indices;
    const int64_t *lengths[LS_MAX_FIELDS];
    ls_tensor *fields[LS_MAX_FIELDS];
    ls_tensor *length_tensors[LS_MAX_FIELDS];
} batch_facts;

/* Copies of indices and lengths of a batch whose slot is read into again. */
typedef struct sent_facts {
    size_t rows;
    size_t n_bad;
    size_t *indices;
    int64_t *lengths[LS_MAX_FIELDS]; /* NULL: the field has none */
} sent_facts;

struct ls_loader {
    ls_loader_options opt;
    batch_layout layout;
    size_t batch_rows;
    size_t tail_rows; /* of a short last batch; 0: there is none */
    size_t n_batches; /* of an epoch */
    size_t piece_rows;
    uint64_t epoch;
    uint64_t epoch_seed;
    batch_slot *slots;
    size_t n_slots;
    /* an epoch's short last batch, used instead of the slot's memory; not with a stream device */
    batch_memory tail;
    batch_memory empty; /* 0 rows */

    // The caller's thread only.
    batch_memory reduced; /* a batch without its broken rows */
    batch_facts facts;    /* of the returned batch */
    uint64_t n_bad;       /* in all batches that were returned */
    bool is_started;
    size_t next;       /* batch that ls_loader_next() returns */
    ls_status failure; /* that ended the epoch */
    char failure_text[LS_ERROR_BYTES];
    device_batches *on_device; /* NULL: a host device */
    size_t sent;               /* the batch whose copy is queued next: `next` or the one after it */
    sent_facts sent_facts[2];  /* of batch k: k % 2 */

    // Under the lock.
    ls_mutex lock;
    ls_cond work;      /* there may be a batch to take */
    ls_cond done;      /* a batch has become ready, or a thread idle */
    size_t taken;      /* the batch whose rows are taken next */
    size_t taken_rows; /* rows of it that threads have taken */
    size_t freed;      /* batches before this one have been used, their slots are free */
    size_t limit;      /* batches from this one on must not be taken */
    size_t n_busy;
    bool stop;

    // Set by the caller's thread when the batches are no longer needed; the other threads check it
    // between samples. Relaxed: it only saves time.
    atomic_bool cancel;
    loader_thread *threads;
    int n_threads; /* 0: the caller's thread reads, with the reader of threads[0] */
};

/* --- loader_slots.c --- */

/* Allocates the slots, and the tensors whose size is the same in each epoch. */
LS_MUST_USE ls_status loader_make_slots(ls_loader *l);
void loader_free_slots(ls_loader *l);

bool loader_is_tail(const ls_loader *l, size_t batch);
size_t loader_rows_of(const ls_loader *l, size_t batch);
batch_slot *loader_slot(const ls_loader *l, size_t batch);

/* On a host device: the tensors that a batch is read into. */
batch_memory *loader_memory(ls_loader *l, size_t batch);

/* Gives the free slot of a batch the memory that it is read into; nothing behind the last batch. */
LS_MUST_USE ls_status loader_prepare(ls_loader *l, size_t batch);

/* Moves the rows that are not left out to the front, sets the lengths and lets the data set change
 * the batch. All rows have been read. */
LS_MUST_USE ls_status loader_complete(const ls_loader *l, batch_slot *slot);

/* --- loader_threads.c --- */

LS_MUST_USE ls_status loader_start_threads(ls_loader *l);
/* Ends and joins the threads, and frees their readers. */
void loader_stop_threads(ls_loader *l);

/* Lets threads read the batches of an epoch from `first` on, whose slots are prepared. */
void loader_begin(ls_loader *l, size_t first);
/* Ends the epoch: afterwards no thread accesses a slot or the sampler. */
void loader_cancel(ls_loader *l);
/* The threads may write the slots of the batches before `batch`. */
void loader_set_freed(ls_loader *l, size_t batch);
/* Waits for a batch, or reads it where there are no threads. Fails with the batch. */
LS_MUST_USE ls_status loader_wait(ls_loader *l, size_t batch, batch_slot **out);
/* The slot of a batch that is ready, complete and without failure; NULL: it is not. */
batch_slot *loader_ready(ls_loader *l, size_t batch);

/* --- loader_host.c, loader_device.c --- */

LS_MUST_USE ls_status loader_next_on_host(ls_loader *l, ls_batch *out);
LS_MUST_USE ls_status loader_next_on_device(ls_loader *l, ls_batch *out);
/* Waits for the copies of the last epoch: the threads may write all slots. */
LS_MUST_USE ls_status loader_finish_copies(ls_loader *l);

/* --- loader.c --- */

/* *out: the batch in the tensors of its columns, with the indices and lengths of l->facts. */
void loader_return(ls_loader *l, ls_tensor *const *tensors, size_t rows, ls_batch *out);
/* *out: the batch without rows at the end of an epoch. */
void loader_return_empty(ls_loader *l, ls_batch *out);

#endif
