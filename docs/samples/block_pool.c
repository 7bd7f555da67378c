/* A block pool in C: a library for ctypes, and a process that answers in JSON lines.
 *
 *   gcc -O1 -shared -fPIC -o libpool.so block_pool.c
 *   gcc -O1 -o pool block_pool.c
 *
 * Free blocks wait in a queue, the one that was freed longest ago in front, and keep their keys
 * until they are handed out again. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_SIZE 32

struct block {
    int previous, next; /* in the queue of free blocks */
    int queued, references;
    char key[KEY_SIZE];
};

static struct block *pool; /* blocks 1 to total; block 0 is the queue's head, and never handed out */
static int total, available;

static void enqueue(int block) {
    int last = pool[0].previous;
    pool[block].previous = last;
    pool[block].next = 0;
    pool[last].next = block;
    pool[0].previous = block;
    pool[block].queued = 1;
    available++;
}

static void dequeue(int block) {
    pool[pool[block].previous].next = pool[block].next;
    pool[pool[block].next].previous = pool[block].previous;
    pool[block].queued = 0;
    available--;
}

void pool_make(int size) {
    free(pool);
    pool = calloc(size + 1, sizeof *pool);
    total = size;
    available = 0;
    for (int block = 1; block <= size; block++) enqueue(block);
}

int pool_alloc(int n, int *out) {
    if (n > available) return -1;
    for (int i = 0; i < n; i++) {
        int block = out[i] = pool[0].next;
        dequeue(block);
        pool[block].key[0] = '\0';
        pool[block].references = 1;
    }
    return 0;
}

int pool_free(int n, const int *blocks) {
    for (int i = 0; i < n; i++) {
        if (pool[blocks[i]].references > 0) {
            pool[blocks[i]].references--;
            continue;
        }
        while (i-- > 0) pool[blocks[i]].references++; /* a refused call changes nothing */
        return -1;
    }
    for (int i = 0; i < n; i++)
        if (pool[blocks[i]].references == 0 && !pool[blocks[i]].queued) enqueue(blocks[i]);
    return 0;
}

int pool_share(int block) {
    if (pool[block].references == 0) return -1;
    pool[block].references++;
    return 0;
}

void pool_touch(int block) {
    if (pool[block].queued) dequeue(block);
    pool[block].references++;
}

int pool_lookup(const char *key) {
    for (int block = 1; block <= total; block++)
        if (strcmp(pool[block].key, key) == 0) return block;
    return 0;
}

int pool_publish(const char *key, int block) {
    if (pool_lookup(key)) return -1; /* another block has this content already */
    snprintf(pool[block].key, KEY_SIZE, "%s", key);
    return 0;
}

int pool_reset(void) {
    if (available < total) return -1;
    for (int block = 1; block <= total; block++) pool[block].key[0] = '\0';
    return 0;
}

int pool_available(void) { return available; }

int pool_references(int block) { return pool[block].references; }

/* --- JSON lines: the harness writes no blanks, so that a field is found by its name. ---------- */

static const char *field(const char *line, const char *name) {
    char quoted[KEY_SIZE];
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *found = strstr(line, quoted);
    return found ? found + strlen(quoted) : "";
}

static int number(const char *line, const char *name) { return atoi(field(line, name)); }

static int asked(const char *line, const char *method) {
    const char *found = field(line, "do");
    size_t length = strlen(method);
    return strncmp(found + 1, method, length) == 0 && found[1 + length] == '"';
}

static int list(const char *line, int **blocks) {
    const char *next = field(line, "blocks");
    int count = 0;
    *blocks = malloc(sizeof(int) * (strlen(next) + 1));
    while (*next != ']') (*blocks)[count++] = (int)strtol(next + 1, (char **)&next, 10);
    return count;
}

static void allocate(FILE *answers, int n) {
    int *blocks = malloc(sizeof(int) * (n > 0 ? n : 1));
    if (pool_alloc(n, blocks) == 0) {
        for (int i = 0; i < n; i++)
            fprintf(answers, "%s%d", i ? "," : "{\"is\":\"done\",\"result\":[", blocks[i]);
        fputs("]}\n", answers);
    } else {
        fputs("{\"is\":\"refused\"}\n", answers);
    }
    free(blocks);
}

static void result(FILE *answers, int value) {
    fprintf(answers, "{\"is\":\"done\",\"result\":%d}\n", value);
}

static void done(FILE *answers, int status) {
    fputs(status == 0 ? "{\"is\":\"done\"}\n" : "{\"is\":\"refused\"}\n", answers);
}

static void answer(const char *line, FILE *answers) {
    char key[KEY_SIZE] = "";
    sscanf(field(line, "key"), "\"%31[^\"]", key);
    int block = number(line, "block");
    if (asked(line, "make")) {
        pool_make(number(line, "size"));
        done(answers, 0);
    } else if (asked(line, "alloc")) {
        allocate(answers, number(line, "n"));
    } else if (asked(line, "free")) {
        int *blocks;
        int count = list(line, &blocks);
        done(answers, pool_free(count, blocks));
        free(blocks);
    } else if (asked(line, "share")) {
        done(answers, pool_share(block));
    } else if (asked(line, "touch")) {
        pool_touch(block);
        done(answers, 0);
    } else if (asked(line, "publish")) {
        done(answers, pool_publish(key, block));
    } else if (asked(line, "lookup")) {
        int found = pool_lookup(key);
        if (found) result(answers, found);
        else done(answers, 0);
    } else if (asked(line, "reset")) {
        done(answers, pool_reset());
    } else if (asked(line, "available")) {
        result(answers, pool_available());
    } else {
        result(answers, pool_references(block));
    }
}

int main(void) {
    FILE *asks = fdopen(atoi(getenv("CACHEWITNESS_ASKED")), "r");
    FILE *answers = fdopen(atoi(getenv("CACHEWITNESS_ANSWERS")), "w");
    fputs("{\"is\":\"ready\",\"protocol\":\"cachewitness.allocator\",\"version\":1,"
          "\"methods\":[\"alloc\",\"free\",\"share\",\"touch\",\"publish\",\"lookup\",\"reset\","
          "\"available\",\"references\"],\"null_block\":0,\"order\":\"lru\"}\n",
          answers);
    fflush(answers);
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, asks) > 0) {
        answer(line, answers);
        fflush(answers);
    }
    return 0;
}
