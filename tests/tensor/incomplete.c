/* SPDX-License-Identifier: Apache-2.0 */
/*
 * incomplete.c - a module whose library is not found when it is loaded, as the CUDA device without
 * cuDNN; with ABSENT it is that library.
 */
int absent_library(void);
int lockstep_device(void);

#ifdef ABSENT
int absent_library(void)
{
    return 1;
}
#else
int lockstep_device(void)
{
    return absent_library();
}
#endif
