/* SPDX-License-Identifier: Apache-2.0 */
/* lockstep.h - includes all public headers. Programs that only communicate need comm.h alone. */
#ifndef LOCKSTEP_LOCKSTEP_H
#define LOCKSTEP_LOCKSTEP_H

#include <lockstep/autograd.h>
#include <lockstep/base.h>
#include <lockstep/checkpoint.h>
#include <lockstep/comm.h>
#include <lockstep/data.h>
#include <lockstep/ddp.h>
#include <lockstep/elastic.h>
#include <lockstep/flags.h>
#include <lockstep/launch.h>
#include <lockstep/local_sgd.h>
#include <lockstep/log.h>
#include <lockstep/nn.h>
#include <lockstep/optim.h>
#include <lockstep/store.h>
#include <lockstep/tensor.h>
#include <lockstep/train.h>

#endif
