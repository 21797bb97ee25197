/* Files that the dynamic loader must not be given: it waits for ever for whoever writes to a fifo,
 * and where a library is shorter than it says, the process ends by SIGBUS. */
#include "internal.h"
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What ends behind the end of the file, of a library for this kind of machine; NULL: nothing. */
static const char *missing_part(int fd, uint64_t size)
{
    ElfW(Ehdr) head;
    const bool is_library = pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head &&
                            memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
                            head.e_phentsize == sizeof(ElfW(Phdr));
    if (!is_library) {
        return NULL; /* the loader says so */
    }
    for (size_t i = 0; i < head.e_phnum; i++) {
        ElfW(Phdr) part;
        const uint64_t at = head.e_phoff + i * sizeof part;
        if (pread(fd, &part, sizeof part, (off_t)at) != (ssize_t)sizeof part) {
            return "it is cut off amid its headers";
        }
        if (part.p_type == PT_LOAD &&
            (part.p_filesz > size || part.p_offset > size - part.p_filesz)) {
            return "it is cut off: its segments do not end within the file";
        }
    }
    return NULL;
}

const char *sm_not_loadable(const char *path)
{
    struct stat about;
    const bool searched_for = strchr(path, '/') == NULL;
    if (searched_for || stat(path, &about) != 0) {
        return NULL; /* the loader says so */
    }
    if (!S_ISREG(about.st_mode)) {
        return "it is not a regular file";
    }
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    const char *why = missing_part(fd, (uint64_t)about.st_size);
    (void)close(fd);
    return why;
}
