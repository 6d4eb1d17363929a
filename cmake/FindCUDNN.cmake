# SPDX-License-Identifier: Apache-2.0
# FindCUDNN: cuDNN 9 from CUDNN_ROOT, the CUDA toolkit, the system's folders, or pip's package
# nvidia-cudnn (of the Python in PATH), which has no libcudnn.so without a version. Needs
# find_package(CUDAToolkit) first for its folders. Makes the target CUDNN::cudnn and sets
# CUDNN_FOUND, CUDNN_VERSION and CUDNN_LIBRARY.
include(${CMAKE_CURRENT_LIST_DIR}/PipPackage.cmake)
set(places ${CUDNN_ROOT} $ENV{CUDNN_ROOT} ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_TARGET_DIR})
pip_package_folder(nvidia.cudnn pip)
find_path(CUDNN_INCLUDE_DIR cudnn_version.h
          HINTS ${places} ${CUDAToolkit_INCLUDE_DIRS} PATHS ${pip} PATH_SUFFIXES include)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 NAMES_PER_DIR
             HINTS ${places} ${CUDAToolkit_LIBRARY_DIR} PATHS ${pip} PATH_SUFFIXES lib64 lib)
mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_LIBRARY)
set(CUDNN_VERSION)
if(CUDNN_INCLUDE_DIR)
  file(STRINGS ${CUDNN_INCLUDE_DIR}/cudnn_version.h lines
       REGEX "^#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) +[0-9]+")
  string(REGEX REPLACE ";?#define CUDNN_[A-Z]+ +([0-9]+)[^;]*" ".\\1" CUDNN_VERSION "${lines}")
  string(REGEX REPLACE "^\\." "" CUDNN_VERSION "${CUDNN_VERSION}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN REQUIRED_VARS CUDNN_LIBRARY CUDNN_INCLUDE_DIR
                                  VERSION_VAR CUDNN_VERSION)
if(CUDNN_FOUND AND NOT TARGET CUDNN::cudnn)
  add_library(CUDNN::cudnn UNKNOWN IMPORTED)
  set_target_properties(CUDNN::cudnn PROPERTIES IMPORTED_LOCATION ${CUDNN_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${CUDNN_INCLUDE_DIR})
endif()
