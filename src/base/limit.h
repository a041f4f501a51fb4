/* limit: how much of the machine this process may use: memory and processors, as its control groups (v1, v2, mixed,
 * nested), its resource limits and the machine itself say. Read anew at each call. Not here: what the memory is spent
 * on (engine/plan.c), threads (pool.c). */
#pragma once
#include "base.h"

/* Bytes: the least of RAM, the memory limits of the process's control group and of all groups above it, RLIMIT_DATA,
 * and what RLIMIT_AS leaves beyond the address space in use now. */
size_t limit_memory(void);
/* What RLIMIT_AS leaves beyond the address space in use; SIZE_MAX without that limit. */
size_t limit_address_space(void);
/* Does memory count where it is mapped, not where it is touched? (RLIMIT_AS, RLIMIT_DATA, strict overcommit) */
bool limit_counts_mapped(void);
size_t limit_ram(void); /* physical memory */
/* Processors' worth of time that the control groups allow, rounded up; 0: no quota. */
int limit_cpus(void);

/* The same from given files, for tests: `groups` is laid out like /proc/self/cgroup, `root` like /sys/fs/cgroup. */
size_t limit_memory_at(const char *groups, const char *root, size_t most);
int limit_cpus_at(const char *groups, const char *root);
