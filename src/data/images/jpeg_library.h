/* SPDX-License-Identifier: Apache-2.0 */
/* jpeg_library.h - libjpeg-turbo's headers, and the name of the library that matches them. */
#ifndef LS_DATA_IMAGES_JPEG_LIBRARY_H
#define LS_DATA_IMAGES_JPEG_LIBRARY_H

#include <stdio.h> /* jpeglib.h needs FILE */
#include <jpeglib.h>
#include <jerror.h>

/* libjpeg-turbo is built for several libjpeg ABIs, each with its own file name. */
#if JPEG_LIB_VERSION >= 80
#define JPEG_LIBRARY "libjpeg.so.8"
#define JPEG_PACKAGE "libjpeg-turbo8"
#else
#define JPEG_LIBRARY "libjpeg.so.62"
#define JPEG_PACKAGE "libjpeg62-turbo"
#endif

#endif
