/* SPDX-License-Identifier: Apache-2.0 */
/*
 * library.h - finds NVIDIA's libraries where pip installs them: the packages nvidia-cudnn-cu13,
 * nvidia-cublas and nvidia-nccl-cu13 have them in the folders nvidia/NAME/lib of Python's packages,
 * which the dynamic linker does not search.
 */
#ifndef LS_BASE_LIBRARY_H
#define LS_BASE_LIBRARY_H

/* Loads the library with this SONAME from the first folder that has it: those of
 * LOCKSTEP_CUDA_LIBRARIES, the packages beside this library (in a wheel), those of PYTHONPATH, of
 * VIRTUAL_ENV, of the Pythons in PATH, and of the user. Then dlopen(soname), and modules that need
 * it, get this one. Where the process has loaded it already, or no folder has one that can be
 * loaded, this does nothing, and the dynamic linker searches. Thread-safe. */
void library_prefer(const char *soname);

#endif
