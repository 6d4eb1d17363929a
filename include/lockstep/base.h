/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.h - included by every other header of Lockstep: status codes, element types, export macros.
 *
 * Errors     A call that can fail returns an ls_status. Its text is ls_last_error(), kept per
 *            thread until the next failing call of that thread.
 * Ownership  Pointers are borrowed for the call unless a comment says otherwise. The result of a
 *            _create, _open or _start belongs to the caller until _destroy, _close or _wait.
 * NULL       A pointer argument that is NULL where no comment allows it is LS_EINVAL. Functions
 *            without a status then do nothing, and return 0 or NULL unless a comment says
 *            otherwise.
 * Options    An options struct begins with its own size: set it to sizeof, and all fields that you
 *            do not need to 0, which means their default. A library that is newer than the
 *            program's header treats missing fields as 0; an older one refuses unknown fields
 *            unless they are 0 (LS_EINVAL).
 * Threads    An object is used by one thread at a time; each header lists its exceptions.
 */
#ifndef LOCKSTEP_BASE_H
#define LOCKSTEP_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define LS_BEGIN_DECLS extern "C" {
#define LS_END_DECLS   }
#else
#define LS_BEGIN_DECLS
#define LS_END_DECLS
#endif

#if defined(__GNUC__)
#define LS_API                __attribute__((visibility("default")))
#define LS_MUST_USE           __attribute__((warn_unused_result))
#define LS_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#else
#define LS_API
#define LS_MUST_USE
#define LS_PRINTF(fmt, first)
#endif

#define LS_VERSION_MAJOR 0
#define LS_VERSION_MINOR 1
#define LS_VERSION_PATCH 0

LS_BEGIN_DECLS

/* The result of a call. Grouped by what is lost: the call, the group, the process. */
typedef enum ls_status {
    LS_OK = 0,

    /* The call failed; everything else is as before. */
    LS_EINVAL = -1,       /* an argument, flag or variable is wrong */
    LS_ENOMEM = -2,       /* no memory */
    LS_ENOTFOUND = -3,    /* no such file, key, name */
    LS_EIO = -4,          /* a file, pipe or device could not be read or written */
    LS_EFORMAT = -5,      /* invalid content of a file, frame or variable */
    LS_EUNSUPPORTED = -6, /* not possible with this backend, device, type or build */
    LS_ETIMEOUT = -7,     /* not ready in the given time; the call may be repeated */
    LS_ESYSTEM = -8,      /* the operating system refused */

    /* The group (or the connection) is broken; destroy it and make a new one. */
    LS_EMISMATCH = -20, /* ranks disagree about the operation */
    LS_EPEER = -21,     /* a peer died, left early or cannot be reached */
    LS_EDEADLINE = -22, /* an operation's own timeout passed */
    LS_ECANCELED = -23, /* aborted from this side */
    LS_EAUTH = -24,     /* the other side does not have the key, or has another identity */
    LS_EPROTO = -25,    /* the other side does not follow the protocol */

    /* The state of the process is inconsistent. */
    LS_EINTERNAL = -40
} ls_status;

/* Returns the status of a failed call from the caller: only where nothing needs undoing. */
#define LS_TRY(call)                                                                               \
    do {                                                                                           \
        const ls_status ls_try_status = (call);                                                    \
        if (ls_try_status != LS_OK)                                                                \
            return ls_try_status;                                                                  \
    } while (0)

/* Element types. The values are sent to other processes and never change. */
typedef enum ls_dtype {
    LS_I8 = 0,
    LS_U8 = 1,
    LS_I32 = 2,
    LS_I64 = 3,
    LS_F16 = 4,  /* IEEE 754 binary16 */
    LS_BF16 = 5, /* the upper half of binary32 */
    LS_F32 = 6,
    LS_F64 = 7
} ls_dtype;
#define LS_DTYPE_COUNT 8

/* A queue of an accelerator (in CUDA's terms a stream): see ls_device_queue(). */
typedef struct ls_queue ls_queue;

/* The text of this thread's last failing call, "" before the first. Never NULL; valid until the
 * thread's next failing call. */
LS_API const char *ls_last_error(void);

/* For functions of the program, such as callbacks, that return a status: sets this thread's last
 * error and returns `status`. LS_OK is not an error: LS_EINVAL. */
LS_API LS_MUST_USE ls_status ls_set_error(ls_status status, const char *format, ...)
    LS_PRINTF(2, 3);

/* "out of memory", ...; never NULL, static. */
LS_API const char *ls_status_text(ls_status status);

/* Bytes of one element; 0 for an invalid value. */
LS_API size_t ls_dtype_size(ls_dtype type);

/* "float32", "bfloat16", ... as PyTorch and nccl-tests print them; "?" for an invalid value. */
LS_API const char *ls_dtype_name(ls_dtype type);

/* "0.1.0": the version of the loaded library, which may differ from LS_VERSION_*. Static. */
LS_API const char *ls_version(void);

LS_END_DECLS

#endif
