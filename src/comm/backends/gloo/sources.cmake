# SPDX-License-Identifier: Apache-2.0
# The Gloo module, the only C++ code. Built where libgloo and a C++ compiler are installed.
find_path(GLOO_INCLUDE_DIR gloo/rendezvous/context.h)
find_library(GLOO_LIBRARY gloo)
mark_as_advanced(GLOO_INCLUDE_DIR GLOO_LIBRARY)
include(CheckLanguage)
check_language(CXX)
if(NOT GLOO_INCLUDE_DIR OR NOT GLOO_LIBRARY OR NOT CMAKE_CXX_COMPILER)
  message(STATUS "backend gloo: not built (needs libgloo-dev and a C++ compiler)")
  return()
endif()
enable_language(CXX)
message(STATUS "backend gloo: with ${GLOO_LIBRARY}")
add_library(lockstep_gloo MODULE backends/gloo/gloo_backend.cc backends/gloo/gloo_calls.cc
    backends/external/compose.c backends/external/external.c ../hub/collectives.c)
set_target_properties(lockstep_gloo PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON
                      CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden)
target_compile_options(lockstep_gloo PRIVATE -O2 -g -Wall -Wextra -Wno-missing-field-initializers)
target_include_directories(lockstep_gloo PRIVATE ${PROJECT_SOURCE_DIR}/include
                           ${PROJECT_SOURCE_DIR}/src)
target_include_directories(lockstep_gloo SYSTEM PRIVATE ${GLOO_INCLUDE_DIR})
target_link_libraries(lockstep_gloo PRIVATE ${GLOO_LIBRARY} Threads::Threads)
install(TARGETS lockstep_gloo LIBRARY DESTINATION ${module_folder} COMPONENT gloo)
