/* Control groups and resource limits.
 *
 * A group's limit counts for every group below it, so each walk goes from the process's group up to the root. Inside a
 * container the files of the group may lie at the root itself while /proc/self/cgroup still shows the host's path; the
 * walk ends there and finds them. Controllers that are mounted together share a directory named after both
 * ("cpu,cpuacct"). */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include "limit.h"

/* What one group allows; the tightest of a walk is kept. */
typedef struct limits {
    size_t memory; /* bytes */
    double cpus;   /* NO_QUOTA: none */
} limits;
static const double NO_QUOTA = 1e9;

/* The first n numbers of a small file; how many there were ("max" ends it). */
static int numbers_read(const char *dir, const char *file, int n, long long *out) {
    char path[4600];
    if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path) return 0;
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    int got = 0;
    while (got < n && fscanf(f, "%lld", &out[got]) == 1) got++;
    fclose(f);
    return got;
}

static void group_v1(const char *dir, limits *l) {
    long long v[1], period[1];
    if (numbers_read(dir, "memory.limit_in_bytes", 1, v) && v[0] >= 0) l->memory = MIN(l->memory, (size_t)v[0]);
    if (numbers_read(dir, "cpu.cfs_quota_us", 1, v) && numbers_read(dir, "cpu.cfs_period_us", 1, period) && v[0] > 0 &&
        period[0] > 0)
        l->cpus = MIN(l->cpus, (double)v[0] / (double)period[0]);
}

static void group_v2(const char *dir, limits *l) {
    long long v[2];
    if (numbers_read(dir, "memory.max", 1, v) && v[0] >= 0) l->memory = MIN(l->memory, (size_t)v[0]);
    if (numbers_read(dir, "cpu.max", 2, v) == 2 && v[0] > 0 && v[1] > 0)
        l->cpus = MIN(l->cpus, (double)v[0] / (double)v[1]);
}

/* From mount/group up to mount. */
static void walk(const char *mount, const char *group, void (*see)(const char *dir, limits *l), limits *l) {
    char dir[4400];
    int n = snprintf(dir, sizeof dir, "%s%s", mount, group);
    if (n < 0 || (size_t)n >= sizeof dir) return;
    size_t root = strlen(mount);
    for (size_t end = (size_t)n + 1; end-- > root;) {
        if (end > root && dir[end] != '/' && dir[end] != 0) continue;
        dir[end] = 0;
        see(dir, l);
    }
}

/* "7:cpu,memory:/path" (v1): the directory has the controllers' name, or links with the name of each. */
static void walk_v1(const char *root, char *controllers, const char *group, limits *l) {
    char mount[512];
    if (snprintf(mount, sizeof mount, "%s/%s", root, controllers) < (int)sizeof mount) walk(mount, group, group_v1, l);
    if (!strchr(controllers, ',')) return;
    char *rest = NULL;
    for (char *name = strtok_r(controllers, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        if (snprintf(mount, sizeof mount, "%s/%s", root, name) < (int)sizeof mount) walk(mount, group, group_v1, l);
}

static limits limits_read(const char *groups, const char *root, size_t memory) {
    limits l = {memory, NO_QUOTA};
    FILE *f = fopen(groups, "re");
    if (!f) return l;
    char *line = NULL, unified[512];
    size_t cap = 0;
    while (getline(&line, &cap, f) > 0) {
        line[strcspn(line, "\n")] = 0;
        char *kind = strchr(line, ':'), *group = kind ? strchr(kind + 1, ':') : NULL;
        if (!group) continue;
        *kind++ = 0;
        *group++ = 0;
        if (group[0] != '/' || strstr(group, "..")) continue;
        if (*kind) {
            walk_v1(root, kind, group, &l);
            continue;
        }
        walk(root, group, group_v2, &l); /* "0::/path"; beside v1 it lies in a directory of its own */
        if (snprintf(unified, sizeof unified, "%s/unified", root) < (int)sizeof unified)
            walk(unified, group, group_v2, &l);
    }
    free(line);
    fclose(f);
    return l;
}

size_t limit_memory_at(const char *groups, const char *root, size_t most) {
    return limits_read(groups, root, most).memory;
}

int limit_cpus_at(const char *groups, const char *root) {
    double cpus = limits_read(groups, root, 0).cpus;
    int whole = cpus < NO_QUOTA ? (int)MIN(cpus, 65536.0) : 0;
    return cpus < NO_QUOTA ? whole + (whole < cpus) : 0;
}

static const char groups_of_self[] = "/proc/self/cgroup", cgroup_root[] = "/sys/fs/cgroup";

int limit_cpus(void) {
    return limit_cpus_at(groups_of_self, cgroup_root);
}

size_t limit_ram(void) {
    return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGE_SIZE);
}

static size_t resource_limit(int what) {
    struct rlimit r;
    return getrlimit(what, &r) || r.rlim_cur == RLIM_INFINITY ? SIZE_MAX : (size_t)r.rlim_cur;
}

size_t limit_address_space(void) {
    size_t most = resource_limit(RLIMIT_AS);
    long long pages[1];
    if (most == SIZE_MAX || !numbers_read("/proc/self", "statm", 1, pages)) return most;
    return most - MIN(most, (size_t)pages[0] * (size_t)sysconf(_SC_PAGE_SIZE));
}

size_t limit_memory(void) {
    size_t n = limit_memory_at(groups_of_self, cgroup_root, limit_ram());
    return MIN(MIN(n, resource_limit(RLIMIT_DATA)), limit_address_space());
}

bool limit_counts_mapped(void) {
    struct rlimit as, data;
    long long strict[1];
    if (getrlimit(RLIMIT_AS, &as) == 0 && as.rlim_cur != RLIM_INFINITY) return true;
    if (getrlimit(RLIMIT_DATA, &data) == 0 && data.rlim_cur != RLIM_INFINITY) return true;
    return numbers_read("/proc/sys/vm", "overcommit_memory", 1, strict) && strict[0] == 2;
}
