/* An inference engine in one file of C: all that docs/protocol.md asks for, p00 to p08 and p13's streams.

       cc -O2 -o engine engine.c -lm
       gradus check --command "./engine {port}"       over HTTP; without {port}, by lines on standard input and output

   Its parts, from the ground up: JSON, weights, forward, sampling, pages, schedule, step, messages, server. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CONTEXT = 512, LAYERS = 8, WIDEST = 1024, SEQUENCES = 64, PAGES = 4096, PAGE = 64, MESSAGE = 1 << 16 };

static int smaller(int a, int b) { return a < b ? a : b; }

/* ---- JSON: values are found where they stand, and nothing is built */
static const char *blank(const char *at) { return at + strspn(at, " \t\r\n"); } /* → behind blanks */

static const char *skip(const char *at) { /* → behind the value at `at` */
    for (int depth = 0; *at; at++) {
        if (*at == '"')
            for (at++; *at != '"'; at++)
                if (!*at || (*at == '\\' && !*++at)) return at;
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        if (depth <= 0 && strchr(",:]} \t\r\n", at[1])) return at + 1; /* strchr finds the text's end as well */
    }
    return at;
}

static const char *member(const char *object, const char *key) { /* → its value, or NULL */
    size_t length = strlen(key);
    for (const char *at = blank(object); *at == '{' || *at == ',';) {
        const char *name = blank(at + 1), *value = blank(skip(name));
        if (*name != '"' || *value != ':') return NULL;
        value = blank(value + 1);
        if (!strncmp(name + 1, key, length) && name[1 + length] == '"') return value;
        at = blank(skip(value));
    }
    return NULL;
}

static double number(const char *object, const char *key) { /* 0 where there is none, 1 for true */
    const char *value = member(object, key);
    return !value ? 0 : *value == 't' ? 1 : strtod(value, NULL);
}

static bool string(const char *object, const char *key, char *into, int room) {
    const char *value = member(object, key);
    return value && *value == '"' && snprintf(into, room, "%.*s", (int)(skip(value) - value - 2), value + 1) < room;
}

static int numbers(const char *list, int *into, int room) { /* → how many; -1: not a list of at most `room` */
    int count = 0;
    if (!list || *list++ != '[') return -1;
    for (char *end; *(list += strspn(list, ", \t\r\n")) != ']'; list = end) {
        if (count == room) return -1;
        into[count++] = (int)strtod(list, &end);
        if (end == list) return -1;
    }
    return count;
}

static char answer[MESSAGE];
static int written;

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    written += vsnprintf(answer + written, MESSAGE - written, format, arguments);
    va_end(arguments);
    if (written >= MESSAGE) exit((fprintf(stderr, "engine: an answer is longer than %d bytes\n", MESSAGE), 1));
}

static void say_list(const char *name, const int *list, int count) {
    say("\"%s\": [", name);
    for (int i = 0; i < count; i++) say(i ? ", %d" : "%d", list[i]);
    say("]");
}

/* ---- weights */
/* [rows, columns] in 32 bits: weight. In 8: code * scale of the row. In 4: code * scale + offset of the group. */
typedef struct { int rows, columns; const float *weight, *scale, *offset; const uint8_t *codes; } Matrix;
typedef struct { const float *attention_norm, *mlp_norm; Matrix q, k, v, o, gate, up, down; } Layer;

static struct {
    int vocabulary, hidden, inner, layers, heads, kv_heads, head, group;
    float theta, eps;
    const float *embedding, *norm;
    Layer layer[LAYERS];
    Matrix output;
    char *file;
} model;

static char *map(const char *folder, const char *name) { /* → the file's bytes, or NULL */
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_RDONLY);
    off_t size = lseek(file, 0, SEEK_END);
    char *bytes = size < 0 ? MAP_FAILED : mmap(NULL, size + 1, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    return bytes == MAP_FAILED ? NULL : bytes;
}

/* The file: u64 length of the header, the header {name: {"dtype", "shape", "data_offsets"}}, the tensors' bytes. */
static const void *tensor(const char *in, const char *name, const char *kind) {
    int place[2];
    uint64_t header;
    char whole[128];
    snprintf(whole, sizeof whole, "%s%s.%s", in, name, kind);
    memcpy(&header, model.file, sizeof header);
    const char *about = member(model.file + 8, whole);
    bool found = about && numbers(member(about, "data_offsets"), place, 2) == 2;
    return found ? model.file + 8 + header + place[0] : NULL;
}

static Matrix matrix(const char *in, const char *name, int rows, int columns) {
    return (Matrix){rows, columns, tensor(in, name, "weight"), tensor(in, name, "scale"),
                    tensor(in, name, "offset"), tensor(in, name, "codes")};
}

static float weight(const Matrix *w, size_t row, size_t column) {
    size_t at = row * w->columns + column;
    if (w->weight) return w->weight[at];
    if (!w->offset) return ((const int8_t *)w->codes)[at] * w->scale[row];
    int code = w->codes[at / 2] >> (at % 2 ? 4 : 0) & 15; /* two in a byte, the low half first */
    return code * w->scale[at / model.group] + w->offset[at / model.group];
}

static void multiply(const Matrix *w, const float *x, float *out) { /* out[rows] = W x[columns] */
    for (int row = 0; row < w->rows; row++) {
        out[row] = 0;
        for (int i = 0; i < w->columns; i++) out[row] += weight(w, row, i) * x[i];
    }
}

static const char *load(const char *folder) { /* → NULL, or what is wrong */
    char *config = map(folder, "config.json");
    model.file = map(folder, "model.safetensors"); /* earlier models stay mapped: an engine loads few */
    if (!config || !model.file) return "the model's folder needs config.json and model.safetensors";
    const char *coded = member(config, "quantization");
    model.group = coded ? number(coded, "group") : 0, model.vocabulary = number(config, "vocab_size");
    model.hidden = number(config, "hidden_size"), model.inner = number(config, "intermediate_size");
    model.heads = number(config, "num_attention_heads"), model.kv_heads = number(config, "num_key_value_heads");
    model.head = number(config, "head_dim"), model.layers = number(config, "num_hidden_layers");
    model.theta = number(config, "rope_theta"), model.eps = number(config, "rms_norm_eps");
    int queries = model.heads * model.head, keys = model.kv_heads * model.head, d = model.hidden, f = model.inner;
    if (model.layers > LAYERS || d > WIDEST || f > WIDEST || queries > WIDEST || model.vocabulary > WIDEST)
        return "the model is larger than this engine's buffers";
    for (int i = 0; i < model.layers; i++) {
        char in[32];
        snprintf(in, sizeof in, "model.layers.%d.", i);
        model.layer[i] = (Layer){
            tensor(in, "input_layernorm", "weight"), tensor(in, "post_attention_layernorm", "weight"),
            matrix(in, "self_attn.q_proj", queries, d), matrix(in, "self_attn.k_proj", keys, d),
            matrix(in, "self_attn.v_proj", keys, d), matrix(in, "self_attn.o_proj", d, queries),
            matrix(in, "mlp.gate_proj", f, d), matrix(in, "mlp.up_proj", f, d), matrix(in, "mlp.down_proj", d, f)};
    }
    model.embedding = tensor("model.", "embed_tokens", "weight"), model.norm = tensor("model.", "norm", "weight");
    model.output = (Matrix){model.vocabulary, d, tensor("", "lm_head", "weight"), NULL, NULL, NULL};
    return NULL;
}

/* ---- forward: one token at one position; its keys and values are stored, those before it are read */
static float *keys, *values; /* [layers, pages * page_size, kv_heads * head] */
static struct { int sequences, pages, page_size, budget, drafts, places, pace_ms; bool sharing; } settings;

static size_t row(int layer, const int *table, int position) {
    int place = table[position / settings.page_size] * settings.page_size + position % settings.page_size;
    return ((size_t)layer * settings.pages * settings.page_size + place) * model.kv_heads * model.head;
}

static void norm(const float *x, const float *weight, float *out) {
    float squares = 0;
    for (int i = 0; i < model.hidden; i++) squares += x[i] * x[i];
    float scale = 1 / sqrtf(squares / model.hidden + model.eps);
    for (int i = 0; i < model.hidden; i++) out[i] = x[i] * scale * weight[i];
}

static void rotate(float *x, int heads, int position) { /* value i turns with value i + half */
    int half = model.head / 2;
    for (float *head = x; head < x + heads * model.head; head += model.head)
        for (int i = 0; i < half; i++) {
            float angle = position * powf(model.theta, -(float)i / half), a = head[i], b = head[i + half];
            head[i] = a * cosf(angle) - b * sinf(angle), head[i + half] = b * cosf(angle) + a * sinf(angle);
        }
}

static void attend(int layer, const float *q, int position, const int *table, float *out) {
    for (int head = 0; head < model.heads; head++, q += model.head, out += model.head) {
        int shared = head / (model.heads / model.kv_heads) * model.head; /* several query heads read one key head */
        float scores[CONTEXT], most = -INFINITY, total = 0;
        for (int p = 0; p <= position; p++) {
            const float *k = keys + row(layer, table, p) + shared;
            scores[p] = 0;
            for (int i = 0; i < model.head; i++) scores[p] += q[i] * k[i] / sqrtf(model.head);
            most = fmaxf(most, scores[p]);
        }
        for (int p = 0; p <= position; p++) total += scores[p] = expf(scores[p] - most);
        memset(out, 0, model.head * sizeof *out);
        for (int p = 0; p <= position; p++) {
            const float *v = values + row(layer, table, p) + shared;
            for (int i = 0; i < model.head; i++) out[i] += scores[p] / total * v[i];
        }
    }
}

static void forward(int token, int position, const int *table, float *logits) { /* logits: NULL for most of a prompt */
    float x[WIDEST], y[WIDEST], q[WIDEST], gathered[WIDEST], gate[WIDEST], up[WIDEST];
    memcpy(x, model.embedding + token * model.hidden, model.hidden * sizeof *x);
    for (int layer = 0; layer < model.layers; layer++) {
        const Layer *w = &model.layer[layer];
        float *k = keys + row(layer, table, position), *v = values + row(layer, table, position);
        norm(x, w->attention_norm, y);
        multiply(&w->q, y, q), multiply(&w->k, y, k), multiply(&w->v, y, v);
        rotate(q, model.heads, position), rotate(k, model.kv_heads, position);
        attend(layer, q, position, table, gathered);
        multiply(&w->o, gathered, y);
        for (int i = 0; i < model.hidden; i++) x[i] += y[i];
        norm(x, w->mlp_norm, y);
        multiply(&w->gate, y, gate), multiply(&w->up, y, up);
        for (int i = 0; i < model.inner; i++) up[i] *= gate[i] / (1 + expf(-gate[i])); /* silu(gate) * up */
        multiply(&w->down, up, y);
        for (int i = 0; i < model.hidden; i++) x[i] += y[i];
    }
    if (logits) norm(x, model.norm, y), multiply(&model.output, y, logits);
}

/* ---- sampling: noise is a function of (seed, position, token), by Philox4x32-10 */
static double uniform(uint64_t seed, uint32_t position, uint32_t token) {
    uint32_t c[4] = {token / 4, position, 0, 0}, k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < 10; round++, k[0] += 0x9E3779B9, k[1] += 0xBB67AE85) {
        uint64_t a = c[0] * 0xD2511F53ull, b = c[2] * 0xCD9E8D57ull;
        uint32_t next[4] = {(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
        memcpy(c, next, sizeof c);
    }
    return ((c[token % 4] >> 9) + 0.5) / (1 << 23);
}

static int choose(const float *logits, double temperature, uint64_t seed, int position) {
    int best = 0;
    double most = -INFINITY;
    for (int token = 0; token < model.vocabulary; token++) {
        double score = logits[token];
        if (temperature > 0) score = score / temperature - log(-log(uniform(seed, position, token)));
        if (score > most) most = score, best = token;
    }
    return best;
}

/* ---- pages: held (users), idle (known, without users: found until its room is needed), or free */
typedef struct { int users, parent, tokens[PAGE]; bool known; long idle_since; } Page;
typedef struct {
    char id[64];
    int tokens[CONTEXT + 1], prompt, known, limit; /* how many are known, and at most */
    int stored, count, drafts;                     /* positions in the cache; this step's span, and the guesses in it */
    int table[CONTEXT], pages, client;             /* client: whom to answer, or -1 */
    double temperature;
    uint64_t seed;
} Sequence;

static Page pages[PAGES];
static long releases;

static int pages_for(int length) { return (length + settings.page_size - 1) / settings.page_size; }

static int available(bool known_ones) {
    int count = 0;
    for (int i = 0; i < settings.pages; i++) count += !pages[i].users && (known_ones || !pages[i].known);
    return count;
}

static int take(void) { /* a free page, else the one that has been idle longest */
    int best = -1;
    for (int i = 0; i < settings.pages; i++)
        if (!pages[i].users && (best < 0 || pages[i].idle_since < pages[best].idle_since)) best = i;
    pages[best] = (Page){.users = 1};
    return best;
}

static void drop(int page) {
    if (--pages[page].users == 0) pages[page].idle_since = pages[page].known ? ++releases : 0;
}

static bool grow(Sequence *s, int end, int spare) { /* all the pages that it needs, or none */
    int missing = pages_for(end) - s->pages;
    if (missing + spare > available(true)) return false;
    while (missing-- > 0) s->table[s->pages++] = take();
    return true;
}

static void shrink(Sequence *s, int length) { /* the last page first: none is idle before the pages behind it */
    while (s->pages > pages_for(length)) drop(s->table[--s->pages]);
    s->stored = length;
}

static int find(int parent, const int *tokens) { /* the page of these tokens behind `parent`, or -1 */
    size_t size = settings.page_size * sizeof *tokens;
    for (int i = 0; i < settings.pages; i++)
        if (pages[i].known && pages[i].parent == parent && !memcmp(pages[i].tokens, tokens, size)) return i;
    return -1;
}

static void admit(Sequence *s) { /* begin with computed pages; the last token is left, for its logits */
    for (int page = -1; s->stored + settings.page_size < s->known; s->stored += settings.page_size) {
        page = find(page, s->tokens + s->stored);
        if (page < 0) return;
        pages[page].users++, s->table[s->pages++] = page;
    }
}

static void publish(Sequence *s) { /* let others find its whole pages; one that is known already replaces its copy */
    for (int i = 0; i < s->stored / settings.page_size; i++) {
        int parent = i ? s->table[i - 1] : -1, *tokens = s->tokens + i * settings.page_size;
        int page = find(parent, tokens);
        if (page < 0) {
            Page *mine = &pages[s->table[i]];
            mine->known = true, mine->parent = parent;
            memcpy(mine->tokens, tokens, settings.page_size * sizeof *tokens);
        } else if (page != s->table[i]) pages[page].users++, drop(s->table[i]), s->table[i] = page;
    }
}

/* ---- schedule: the first `running` of the queue run; the last of them is preempted first, and so resumes first */
static Sequence *queue[SEQUENCES];
static int queued, running;

static int guess(Sequence *s, int most) { /* copy what followed the last two tokens where they stood before */
    int *newest = s->tokens + s->known - 1;
    for (int *at = newest - 1; at > s->tokens; at--)
        if (at[0] == newest[0] && at[-1] == newest[-1]) {
            for (int i = 1; i <= most; i++) newest[i] = at[i];
            return most;
        }
    return 0;
}

static bool start(Sequence *s, int *left) { /* if the pool has a page for each running one to grow into, as well */
    if (settings.sharing) admit(s);
    s->count = smaller(s->known - s->stored, *left);
    if (!grow(s, s->stored + s->count, running)) return shrink(s, 0), false;
    *left -= s->count;
    return true;
}

static void plan(void) {
    int left = settings.budget ? settings.budget : INT_MAX, before = running;
    for (int i = 0; i < running; i++) { /* only the last one can have a prompt under way: no decode waits behind it */
        Sequence *s = queue[i];
        s->count = smaller(s->known - s->stored, left);
        while (i < running && !grow(s, s->stored + s->count, 0)) shrink(queue[--running], 0);
        if (i < running) left -= s->count;
    }
    bool room = running == before; /* pages just taken from one must not go back to it */
    while (room && left > 0 && running < smaller(queued, settings.sequences) && start(queue[running], &left)) running++;
    for (int i = 0; i < running; i++) { /* what is left goes to guesses behind decodes */
        Sequence *s = queue[i];
        int most = smaller(smaller(settings.drafts, left), s->limit - s->known - 1);
        bool decodes = s->stored >= s->prompt && s->stored + s->count == s->known;
        s->drafts = decodes && most > 0 ? guess(s, most) : 0;
        if (s->drafts && !grow(s, s->known + s->drafts, 0)) s->drafts = 0;
        s->count += s->drafts, left -= s->drafts;
    }
}

/* ---- step: run the plan, record it, report it */
static void leave(int place) {
    shrink(queue[place], 0);
    free(queue[place]);
    memmove(queue + place, queue + place + 1, (--queued - place) * sizeof *queue);
    running -= place < running;
}

static int run(Sequence *s) { /* compute its span → how many new tokens, from tokens[known] on */
    static float logits[WIDEST];
    int end = s->stored + s->count;
    for (int at = s->stored; at < end; at++) {
        bool newest = at >= s->known - 1;
        forward(s->tokens[at], at, s->table, newest ? logits : NULL);
        if (!newest) continue;
        int guessed = s->tokens[at + 1];
        s->tokens[at + 1] = choose(logits, s->temperature, s->seed, at + 1);
        if (at + 1 == end || guessed != s->tokens[at + 1]) return at + 2 - s->known; /* behind a wrong guess: nothing */
    }
    return 0;
}

static void step(void (*deliver)(Sequence *, int)) {
    plan();
    written = 0;
    say("{\"free\": %d, \"idle\": %d, \"tables\": {", available(false), available(true) - available(false));
    for (int i = 0; i < running; i++) say(i ? ", " : ""), say_list(queue[i]->id, queue[i]->table, queue[i]->pages);
    say("}, \"spans\": [");
    for (int i = 0; i < running; i++) {
        Sequence *s = queue[i];
        say("%s{\"id\": \"%s\", \"start\": %d, \"count\": %d, ", i ? ", " : "", s->id, s->stored, s->count);
        say_list("drafts", s->tokens + s->known, s->drafts);
        int made = run(s);
        say(", "), say_list("tokens", s->tokens + s->known, made), say("}");
        s->known += made;
        shrink(s, made ? s->known - 1 : s->stored + s->count); /* wrong guesses give their pages back */
        if (settings.sharing) publish(s);
        if (made && deliver) deliver(s, made);
    }
    say("], \"ended\": [");
    for (int i = 0, ended = 0; i < running;)
        if (queue[i]->known == queue[i]->limit) say("%s\"%s\"", ended++ ? ", " : "", queue[i]->id), leave(i);
        else i++;
    say("]}");
}

/* ---- messages */
static const char *configure(const char *message) {
    char folder[PATH_MAX];
    while (queued) leave(0);
    if (!string(message, "model", folder, sizeof folder)) return "configure needs a model";
    const char *wrong = load(folder);
    if (wrong) return wrong;
    settings.sequences = number(message, "sequences"), settings.pages = number(message, "pages");
    settings.page_size = number(message, "page_size"), settings.budget = number(message, "token_budget");
    settings.drafts = number(message, "drafts"), settings.sharing = number(message, "sharing");
    settings.places = number(message, "places"), settings.pace_ms = number(message, "pace_ms");
    if (!settings.pages) settings.page_size = PAGE, settings.pages = settings.sequences * CONTEXT / PAGE;
    if (settings.pages > PAGES || settings.page_size > PAGE) return "more pages, or larger ones, than this engine has";
    size_t floats = (size_t)model.layers * settings.pages * settings.page_size * model.kv_heads * model.head;
    keys = realloc(keys, floats * sizeof *keys), values = realloc(values, floats * sizeof *values);
    memset(pages, 0, sizeof pages);
    return NULL;
}

static const char *submit(const char *message, int client) {
    Sequence *s = calloc(1, sizeof *s);
    const char *wrong = NULL;
    s->prompt = s->known = numbers(member(message, "prompt"), s->tokens, CONTEXT);
    s->limit = s->prompt + (int)number(message, "max_tokens");
    s->temperature = number(message, "temperature"), s->seed = number(message, "seed");
    s->client = client, string(message, "id", s->id, sizeof s->id);
    for (int i = 0; i < s->prompt; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= model.vocabulary) wrong = "prompt has a token outside the vocabulary";
    if (s->prompt < 1) wrong = "prompt must be a list of 1 to 512 token ids";
    else if (s->limit <= s->prompt || s->limit > CONTEXT) wrong = "max_tokens must be 1 or more, and fit the context";
    else if (pages_for(s->limit - 1) > settings.pages) wrong = "the request needs more pages than the pool has";
    else if (queued == SEQUENCES) wrong = "the queue is full";
    if (wrong) free(s);
    else queue[queued++] = s;
    return wrong;
}

static void settle(const char *wrong) {
    written = 0;
    if (wrong) say("{\"error\": \"%s\"}", wrong);
    else say("{\"ok\": true}");
}

static void handle(const char *message) {
    char task[16] = "";
    string(message, "do", task, sizeof task);
    if (!strcmp(task, "step")) step(NULL);
    else if (!strcmp(task, "configure")) settle(configure(message));
    else settle(!strcmp(task, "submit") ? submit(message, -1) : "unknown message");
}

/* ---- server: one thread, which reads a request or runs a step, and waits for no reader */
static void reply(int client, const char *status, const char *body) {
    dprintf(client, "HTTP/1.1 %s\r\ncontent-length: %zu\r\nconnection: close\r\n\r\n%s", status, strlen(body), body);
    close(client);
}

static void deliver(Sequence *s, int made) { /* one event, with the tokens of one step */
    bool over = s->known == s->limit;
    written = 0; /* a step's report has no reader here */
    say("data: {"), say_list("token_ids", s->tokens + s->known - made, made);
    say(over ? ", \"finish_reason\": \"length\"}\n\ndata: [DONE]\n\n" : "}\n\n");
    send(s->client, answer, written, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (over) close(s->client);
}

static void drop_clients_that_left(void) {
    char byte;
    for (int i = 0; i < queued;)
        if (recv(queue[i]->client, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) close(queue[i]->client), leave(i);
        else i++;
}

static void generate(int client, const char *body) {
    drop_clients_that_left();
    if (queued >= settings.places) return reply(client, "503 Service Unavailable", "{\"error\": \"full\"}");
    const char *wrong = submit(body, client);
    if (wrong) settle(wrong), reply(client, "400 Bad Request", answer);
    else dprintf(client, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n");
}

static void serve_one(int client) {
    static char request[MESSAGE];
    char *body = NULL;
    size_t got = 0, length = 0;
    while (!body || (size_t)(request + got - body) < length) {
        ssize_t more = recv(client, request + got, MESSAGE - 1 - got, 0);
        if (more <= 0) return (void)close(client); /* it left, was silent for a second, or sent too much */
        request[got += more] = 0;
        char *announced = strcasestr(request, "content-length:");
        if ((body = strstr(request, "\r\n\r\n"))) body += 4, length = announced ? strtoul(announced + 15, NULL, 10) : 0;
    }
    if (!strncmp(request, "GET /health ", 12)) reply(client, "200 OK", "{\"status\": \"ready\"}");
    else if (!strncmp(request, "POST /generate ", 15)) generate(client, body);
    else handle(body), reply(client, "200 OK", answer);
}

static int serve(int port) {
    struct sockaddr_in here = {AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}, {0}};
    struct timeval second = {.tv_sec = 1};
    struct pollfd door = {.fd = socket(AF_INET, SOCK_STREAM, 0), .events = POLLIN};
    signal(SIGPIPE, SIG_IGN);
    if (bind(door.fd, (struct sockaddr *)&here, sizeof here) || listen(door.fd, 64)) return perror("engine: bind"), 1;
    for (;;) {
        bool serving = settings.places && queued;
        if (poll(&door, 1, serving ? settings.pace_ms : -1) > 0) {
            int client = accept(door.fd, NULL, NULL);
            setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
            serve_one(client);
        } else if (serving) drop_clients_that_left(), step(deliver);
    }
}

int main(int count, char **arguments) {
    static char line[MESSAGE];
    if (count > 1) return serve(atoi(arguments[1]));
    while (fgets(line, sizeof line, stdin)) handle(line), puts(answer), fflush(stdout);
}
