/* SPDX-License-Identifier: MIT */
/* cpu.h: which kernel tiers this CPU has and this operating system saves on a context switch. */
#ifndef KVS_BASE_CPU_H
#define KVS_BASE_CPU_H

#include <stdint.h>

uint32_t kvs__cpu_detect(void); /* KVS_TIER_*; pure, a few hundred cycles */
uint32_t kvs__cpu_count(void);  /* CPUs this process may run on (affinity and cgroup quota), >= 1 */

#endif
