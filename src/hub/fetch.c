/* Downloads with libcurl: https only (http where the index itself was configured as http), resumed, verified, synced.
 */
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "hub.h"

enum { ATTEMPTS = 4, STALL_S = 60, REDIRECTS_MAX = 5, BLOCK = 1 << 18 };

static void curl_start(void) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

static CURL *curl_handle(const char *url, error *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, curl_start);
    CURL *c = curl_easy_init();
    if (!c) {
        error_set(err, ERR_INTERNAL, "libcurl does not start");
        return NULL;
    }
    const char *protocols = strncmp(url, "http://", 7) == 0 ? "http,https" : "https";
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, protocols);
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, protocols);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, (long)REDIRECTS_MAX);
    curl_easy_setopt(c, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "hearth/" HEARTH_VERSION);
    const char *bundle = getenv("CURL_CA_BUNDLE"); /* as the curl program does */
    if (!bundle || !*bundle) bundle = getenv("SSL_CERT_FILE");
    if (bundle && *bundle) curl_easy_setopt(c, CURLOPT_CAINFO, bundle);
    return c;
}

static bool is_transient(CURLcode rc, long status) {
    switch (rc) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM: return true;
    case CURLE_HTTP_RETURNED_ERROR: return status == 408 || status == 429 || status >= 500;
    default: return false;
    }
}

static bool network_error(error *err, const char *url, CURLcode rc, long status) {
    if (rc == CURLE_HTTP_RETURNED_ERROR)
        return error_set(err, status == 404 ? ERR_NOT_FOUND : ERR_NETWORK, "%s answered with HTTP status %ld", url,
                         status);
    return error_set(err, ERR_NETWORK, "cannot fetch %s: %s", url, curl_easy_strerror(rc));
}

typedef struct text_sink {
    buf *out;
    size_t bytes_max;
} text_sink;

static size_t text_write(char *p, size_t size, size_t n, void *arg) {
    text_sink *s = arg;
    if (s->out->n + n > s->bytes_max) return 0;
    buf_add(s->out, p, n);
    return n;
}

bool fetch_text(const char *url, size_t bytes_max, buf *out, error *err) {
    CURLcode rc = CURLE_OK;
    long status = 0;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (attempt) sleep(1u << attempt);
        CURL *c = curl_handle(url, err);
        if (!c) return false;
        out->n = 0;
        text_sink sink = {out, bytes_max};
        curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, text_write);
        curl_easy_setopt(c, CURLOPT_WRITEDATA, &sink);
        curl_easy_setopt(c, CURLOPT_TIMEOUT, 120L);
        rc = curl_easy_perform(c);
        curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_cleanup(c);
        if (rc == CURLE_OK) return true;
        if (!is_transient(rc, status)) break;
    }
    return network_error(err, url, rc, status);
}

typedef struct file_sink {
    int fd;
    int write_errno;  /* why writing failed, 0 if it did not */
    uint64_t done;    /* bytes in the file, those of earlier attempts included */
    EVP_MD_CTX *hash; /* owns; of those bytes */
    const char *what;
    const hub_progress *progress;
} file_sink;

static size_t file_write(char *p, size_t size, size_t n, void *arg) {
    file_sink *s = arg;
    if (!file_write_all(s->fd, (str){p, n})) {
        s->write_errno = errno;
        return 0;
    }
    EVP_DigestUpdate(s->hash, p, n);
    s->done += n;
    return n;
}

static int file_progress(void *arg, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now) {
    file_sink *s = arg;
    uint64_t from = s->done - MIN((uint64_t)now, s->done);
    if (s->progress && s->progress->on_bytes)
        s->progress->on_bytes(s->progress->arg, s->what, s->done, total > 0 ? from + (uint64_t)total : 0);
    return 0;
}

/* Hashes what is in the file and leaves the position behind it. */
static bool hash_prefix(file_sink *s, const char *part, error *err) {
    EVP_DigestInit_ex(s->hash, EVP_sha256(), NULL);
    s->done = 0;
    if (lseek(s->fd, 0, SEEK_SET) != 0) return error_errno(err, ERR_IO, "cannot seek in %s", part);
    char *block = mem_alloc(BLOCK);
    ssize_t n;
    while ((n = read(s->fd, block, BLOCK)) > 0) {
        EVP_DigestUpdate(s->hash, block, (size_t)n);
        s->done += (uint64_t)n;
    }
    free(block);
    return n == 0 || error_errno(err, ERR_IO, "cannot read %s", part);
}

static bool start_over(file_sink *s, const char *part, error *err) {
    if (ftruncate(s->fd, 0) != 0) return error_errno(err, ERR_IO, "cannot truncate %s", part);
    return hash_prefix(s, part, err);
}

static bool download(file_sink *s, const char *url, const char *part, error *err) {
    CURLcode rc = CURLE_OK;
    long status = 0;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (attempt) sleep(1u << attempt);
        CURL *c = curl_handle(url, err);
        if (!c) return false;
        curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, file_write);
        curl_easy_setopt(c, CURLOPT_WRITEDATA, s);
        curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, file_progress);
        curl_easy_setopt(c, CURLOPT_XFERINFODATA, s);
        curl_easy_setopt(c, CURLOPT_RESUME_FROM_LARGE, (curl_off_t)s->done);
        rc = curl_easy_perform(c);
        curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_cleanup(c);
        if (rc == CURLE_OK) return true;
        if (s->write_errno) {
            errno = s->write_errno;
            return error_errno(err, ERR_IO, "cannot write %s (the %llu bytes fetched so far are kept)", part,
                               (unsigned long long)s->done);
        }
        /* 416: all of it is there already, or what is there belongs to another file; the hash will tell. */
        if (rc == CURLE_HTTP_RETURNED_ERROR && status == 416) return true;
        if (rc == CURLE_RANGE_ERROR) { /* a server without ranges */
            if (!start_over(s, part, err)) return false;
            continue;
        }
        if (!is_transient(rc, status)) break;
    }
    return network_error(err, url, rc, status);
}

static void hex_digest(EVP_MD_CTX *hash, char text[65]) {
    unsigned char d[EVP_MAX_MD_SIZE] = {0};
    EVP_DigestFinal_ex(hash, d, NULL);
    for (int i = 0; i < 32; i++) {
        text[2 * i] = "0123456789abcdef"[d[i] >> 4];
        text[2 * i + 1] = "0123456789abcdef"[d[i] & 15];
    }
    text[64] = 0;
}

bool fetch_file(const char *url, const char *path, const char *sha256, const char *what, const hub_progress *progress,
                error *err) {
    buf part = {0};
    buf_printf(&part, "%s.part", path);
    file_sink s = {.fd = open(part.p, O_RDWR | O_CREAT | O_CLOEXEC, 0644), .what = what, .progress = progress};
    s.hash = EVP_MD_CTX_new();
    char got[65] = "";
    bool ok = s.fd >= 0 || error_errno(err, ERR_IO, "cannot create %s", part.p);
    ok = ok && hash_prefix(&s, part.p, err);
    bool resumed = ok && s.done > 0;
    ok = ok && download(&s, url, part.p, err);
    if (ok) hex_digest(s.hash, got);
    if (ok && resumed &&
        strcmp(got, sha256) != 0) { /* the earlier part may be of something else: once more from the start */
        ok = start_over(&s, part.p, err) && download(&s, url, part.p, err);
        if (ok) hex_digest(s.hash, got);
    }
    if (ok && strcmp(got, sha256) != 0) {
        ok = error_set(err, ERR_FORMAT, "%s has SHA-256 %s, expected %s; removed", url, got, sha256);
        unlink(part.p);
    }
    if (ok && fsync(s.fd) != 0) ok = error_errno(err, ERR_IO, "cannot sync %s", part.p);
    if (s.fd >= 0 && close(s.fd) != 0 && ok) ok = error_errno(err, ERR_IO, "cannot close %s", part.p);
    if (ok && rename(part.p, path) != 0) ok = error_errno(err, ERR_IO, "cannot rename %s", part.p);
    EVP_MD_CTX_free(s.hash);
    buf_free(&part);
    return ok;
}
