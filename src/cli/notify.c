/* Telling the service manager how we are: one datagram to $NOTIFY_SOCKET, systemd's protocol (sd_notify(3)). */
#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "cli.h"

void cli_notify(const char *state) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof a.sun_path || (path[0] != '/' && path[0] != '@')) return;
    memcpy(a.sun_path, path, n);
    if (path[0] == '@') a.sun_path[0] = 0; /* an abstract name */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&a, size) < 0)
        log_warn("the service manager at %s does not listen", path);
    close(fd);
}
