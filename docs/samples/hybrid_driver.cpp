// A driver in C++ at manager level: one pool of pages under full attention and a recurrent group, with a prefix cache.
//
//     g++ -std=c++17 -O1 -o hybrid_driver hybrid_driver.cpp
//     cachewitness run --engine jsonl:command=./hybrid_driver
//
// Put your own allocator in the place of `Cache`. docs/reference/protocol.md says what every line means.
// Two faults can be planted: --bug=early-snapshot publishes a recurrent state before it was written,
// and --bug=freed-while-shared gives the pages of an aborted request back although other requests hold them.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using Numbers = std::vector<long>;

// --- JSON: what is asked is read, what is answered is written --------------------------------------------------------------

struct Json {
    std::string text;  // of a string as it is escaped, since names are only compared and repeated; of a number its digits
    std::vector<Json> items;
    std::map<std::string, Json> fields;
    const Json& operator[](const std::string& name) const {
        static const Json nothing;  // a field with a default may be left out
        auto found = fields.find(name);
        return found == fields.end() ? nothing : found->second;
    }
    long number() const { return std::stol(text); }
};

struct Reader {
    const std::string& line;
    size_t at = 0;
    char next() {
        while (at < line.size() && (line[at] == ' ' || line[at] == '\n')) at++;
        return at < line.size() ? line[at] : '\0';
    }
    Json value() {
        Json out;
        const char open = next();
        if (open == '{' || open == '[') {
            for (at++; next() != '}' && next() != ']'; at += next() == ',') {
                if (next() == '\0') throw std::runtime_error("a line that is cut off");
                if (open == '[') {
                    out.items.push_back(value());
                    continue;
                }
                const std::string name = value().text;
                at += next() == ':';
                out.fields[name] = value();
            }
            at++;
        } else if (open == '"') {
            const size_t first = ++at;
            while (at < line.size() && line[at] != '"') at += line[at] == '\\' ? 2 : 1;
            out.text = line.substr(first, at++ - first);
        } else {
            while (at < line.size() && std::string(",]} \n").find(line[at]) == std::string::npos) out.text += line[at++];
        }
        return out;
    }
};

std::string list(const std::vector<std::string>& items) {
    std::string out;
    for (const auto& item : items) out += (out.empty() ? "" : ",") + item;
    return "[" + out + "]";
}

std::string list(const Numbers& numbers) {
    std::vector<std::string> items;
    for (long number : numbers) items.push_back(std::to_string(number));
    return list(items);
}

struct Object {
    std::string text;
    Object& raw(const std::string& name, const std::string& value) {
        text += (text.empty() ? "{\"" : ",\"") + name + "\":" + value;
        return *this;
    }
    Object& add(const std::string& name, const std::string& value) { return raw(name, "\"" + value + "\""); }
    Object& add(const std::string& name, long value) { return raw(name, std::to_string(value)); }
    Object& add(const std::string& name, const Numbers& value) { return raw(name, list(value)); }
    std::string str() const { return text + "}"; }
};

// --- the cache: pages with reference counts, and keys that name what a page holds ------------------------------------------

enum { FULL, RECURRENT, GROUPS };
const long NONE = -1;  // a column of a block table that is not there

struct Page {
    int references = 0;
    int group = FULL, prefix = -1;  // its key: the prefix that it holds, for a group; -1: it has none
};

struct Cache {
    std::vector<Page> pages;
    std::list<long> unheld;                           // handed out from the front; pages with a key wait at the back
    std::map<std::pair<int, int>, long> keyed;        // (group, prefix) -> page
    std::map<std::pair<int, Numbers>, int> prefixes;  // (prefix before, tokens of a block) -> prefix; no hash can collide

    explicit Cache(long count) : pages(count) {
        for (long page = 0; page < count; page++) unheld.push_back(page);
    }
    int prefix(int before, const Numbers& block) {
        return prefixes.emplace(std::make_pair(before, block), static_cast<int>(prefixes.size())).first->second;
    }
    long find(int group, int wanted) const {
        auto found = keyed.find({group, wanted});
        return found == keyed.end() ? NONE : found->second;
    }
    void name(long page, int group, int prefix) {
        keyed[{group, prefix}] = page;
        pages[page].group = group;
        pages[page].prefix = prefix;
    }
    void forget(long page) {
        keyed.erase({pages[page].group, pages[page].prefix});
        pages[page].prefix = -1;
    }
    void hold(long page) {
        if (pages[page].references++ == 0) unheld.remove(page);
    }
    void release(long page) {
        if (--pages[page].references > 0) return;
        unheld.insert(pages[page].prefix < 0 ? unheld.begin() : unheld.end(), page);
    }
};

// --- the engine: the requests of one trace over one cache ------------------------------------------------------------------

struct Request {
    std::string r, stream;
    Numbers tokens;
    size_t prompt = 0, computed = 0;
    int root = 0;           // the prefix of no token: one for each salt and adapter
    Numbers table[GROUPS];  // by column, one page for each block
    bool admitted = false;
};

struct Engine {
    Cache cache;
    size_t block;
    std::string bug;
    long step = 0;
    std::map<std::string, Request> live;
    std::map<std::string, long> texts;
    std::vector<std::string> events;
    std::set<long> touched;  // pages whose reference count changed in this operation

    Engine(const Json& trace, std::string planted)
        : cache(trace["pages"].number()),
          block(trace["layout"]["groups"].items[0]["block_size"].number()),
          bug(std::move(planted)) {}

    Object event(const std::string& kind) const { return Object().add("e", kind).add("step", step); }
    void say(const Object& event) { events.push_back(event.str()); }

    std::string apply(const Json& op) {
        events.clear();
        touched.clear();
        const std::string kind = op["op"].text, r = op["r"].text;
        if (kind == "submit") submit(op);
        if (kind == "step") run(op["run"]);
        if (kind == "preempt") preempt(live.at(r));
        if (kind == "finish" || kind == "abort") end(kind, r);
        if (kind == "reset" || kind == "update_weights") forget_all(kind, op);
        count();
        return list(events);
    }

    void submit(const Json& op) {
        Request request;
        request.r = op["r"].text;
        request.stream = op["stream"].text.empty() ? "@" + request.r : op["stream"].text;
        request.tokens = spelled(op["prompt"].text);
        request.prompt = request.tokens.size();
        const std::string identity = "salt " + op["salt"].text + " adapter " + op["adapter"].text;
        request.root = cache.prefix(-1, Numbers(identity.begin(), identity.end()));
        live[request.r] = request;
        Object submitted = event("submit").add("r", request.r).add("tokens", request.tokens);
        say(submitted.add("salt", op["salt"].text).add("adapter", op["adapter"].text));
    }

    // "sys:32 q1[4]:5" is 32 tokens of the text `sys` and then tokens 4 to 8 of the text `q1`.
    Numbers spelled(const std::string& prompt) {
        Numbers out;
        for (size_t at = 0; at < prompt.size();) {
            const size_t stop = std::min(prompt.find(' ', at), prompt.size()), colon = prompt.rfind(':', stop);
            const size_t bracket = std::min(prompt.find('[', at), colon);
            const long start = bracket < colon ? std::stol(prompt.substr(bracket + 1)) : 0;
            const long length = std::stol(prompt.substr(colon + 1));
            for (long i = start; i < start + length; i++) out.push_back(token(prompt.substr(at, bracket - at), i));
            at = stop + 1;
        }
        return out;
    }

    // Equal places of equal texts are equal tokens, all others differ.
    long token(const std::string& text, long position) {
        return (texts.emplace(text, texts.size() + 1).first->second << 16) + position;
    }

    // The prefixes that end with each of the first `count` blocks.
    std::vector<int> prefixes(const Request& request, size_t count) {
        std::vector<int> out;
        for (auto at = request.tokens.begin(); out.size() < count; at += static_cast<long>(block))
            out.push_back(cache.prefix(out.empty() ? request.root : out.back(), Numbers(at, at + static_cast<long>(block))));
        return out;
    }

    // Full attention needs every block of a prefix, the recurrent group the state behind its last block. The longest prefix
    // that both have is hit, but for one token that is left to compute.
    void look_up(Request& request) {
        const auto prefix = prefixes(request, (request.tokens.size() - 1) / block);
        size_t blocks = 0;
        while (blocks < prefix.size() && cache.find(FULL, prefix[blocks]) != NONE) blocks++;
        while (blocks > 0 && cache.find(RECURRENT, prefix[blocks - 1]) == NONE) blocks--;
        for (Numbers& table : request.table) table.assign(blocks, NONE);
        for (size_t i = 0; i < blocks; i++) request.table[FULL][i] = cache.find(FULL, prefix[i]);
        if (blocks) request.table[RECURRENT].back() = cache.find(RECURRENT, prefix[blocks - 1]);
        request.computed = blocks * block;
    }

    // Gives a request the pages for its tokens up to `stop`; false if there are too few, and then nothing has changed.
    bool allocate(Request& request, size_t stop) {
        const size_t columns = (stop + block - 1) / block;
        size_t needed = 0;
        for (const Numbers& table : request.table) {
            needed += std::max(columns, table.size()) - table.size();
            for (long page : table) needed += page != NONE && cache.pages[page].references == 0;  // hit, and held by nobody
        }
        if (needed > cache.unheld.size()) {
            if (!request.admitted) forget_tables(request);
            return false;
        }
        if (!request.admitted) {
            for (int group = FULL; group < GROUPS; group++) {
                for (long page : request.table[group])
                    if (page != NONE) cache.hold(page);
                say_pages("acquire", group, request.table[group], request.r);
            }
            const long hit = static_cast<long>(request.computed);
            say(event("hit").add("r", request.r).add("reported", hit).add("resume", hit).raw("pages", tables(request)));
        }
        request.admitted = true;
        for (int group = FULL; group < GROUPS; group++) grow(request, group, columns);
        return true;
    }

    // A hit that is not taken is forgotten: nobody holds its pages, and the request is looked up again.
    void forget_tables(Request& request) {
        for (Numbers& table : request.table) table.clear();
        request.computed = 0;
    }

    void grow(Request& request, int group, size_t columns) {
        Numbers taken;
        while (request.table[group].size() < columns) {
            const long page = cache.unheld.front();
            if (cache.pages[page].prefix >= 0) unpublish(page, "evict");
            cache.hold(page);
            taken.push_back(page);
            request.table[group].push_back(page);
        }
        say_pages("acquire", group, taken, request.r);
    }

    void say_pages(const std::string& kind, int group, Numbers pages, const std::string& r) {
        pages.erase(std::remove(pages.begin(), pages.end(), NONE), pages.end());
        if (pages.empty()) return;
        touched.insert(pages.begin(), pages.end());
        say(event(kind).add("pool", 0).add("group", group).add("pages", pages).add("holder", r));
    }

    std::string tables(const Request& request) const {
        return list({list(request.table[FULL]), list(request.table[RECURRENT])});
    }

    // One step: every request that is asked for gets pages for its chunk, the device runs, then others may hit what it wrote.
    void run(const Json& asked) {
        step++;
        std::vector<std::string> wanted, runs;
        std::vector<std::pair<Request*, size_t>> ran;
        for (const Json& entry : asked.items) {
            Request& request = live.at(entry.items[0].text);
            wanted.push_back("[\"" + request.r + "\"," + entry.items[1].text + "]");
            if (!request.admitted) look_up(request);
            const size_t count = static_cast<size_t>(entry.items[1].number());
            const size_t stop = std::min(request.computed + count, request.tokens.size());
            if (stop == request.computed || !allocate(request, stop)) continue;
            const long start = static_cast<long>(request.computed), end = static_cast<long>(stop);
            Object row = Object().add("r", request.r).add("start", start).add("stop", end);
            runs.push_back(row.raw("tables", tables(request)).str());
            ran.emplace_back(&request, std::exchange(request.computed, stop));
        }
        say(event("step_begin").raw("asked", list(wanted)).raw("runs", list(runs)));
        // A real engine runs its kernels here, over these tables.
        say(event("step_end"));
        for (auto [request, start] : ran) written(*request, start);
    }

    void written(Request& request, size_t start) {
        const size_t full = request.computed / block;  // so many blocks have all their tokens
        for (size_t i = start / block; i < full; i++)
            for (int group = FULL; group < GROUPS; group++) publish(request, group, i);
        if (bug == "early-snapshot" && request.computed % block && (full + 1) * block <= request.tokens.size())
            publish(request, RECURRENT, full);  // the page holds the state in the middle of the block
        drop_old_states(request);
        if (request.computed < request.tokens.size()) return;
        const Numbers next{token(request.stream, static_cast<long>(request.tokens.size() - request.prompt))};
        request.tokens.push_back(next[0]);
        say(event("accept").add("r", request.r).add("upto", static_cast<long>(request.tokens.size())).add("tokens", next));
    }

    void publish(const Request& request, int group, size_t column) {
        const int prefix = prefixes(request, column + 1).back();
        const long page = request.table[group][column], length = static_cast<long>((column + 1) * block);
        if (page == NONE || cache.find(group, prefix) != NONE || cache.pages[page].prefix >= 0) return;
        cache.name(page, group, prefix);
        say(event("publish").add("group", group).add("page", page).add("r", request.r).add("length", length));
    }

    void unpublish(long page, const std::string& reason) {
        say(event("unpublish").add("group", cache.pages[page].group).add("page", page).add("reason", reason));
        cache.forget(page);
    }

    // A request reads its last state alone again. Older ones stay under their keys as long as nobody needs the room.
    void drop_old_states(Request& request) {
        Numbers& states = request.table[RECURRENT];
        Numbers dropped;
        for (size_t i = 0; i < (request.computed - 1) / block; i++) dropped.push_back(std::exchange(states[i], NONE));
        say_pages("release", RECURRENT, dropped, request.r);
        for (long page : dropped)
            if (page != NONE) cache.release(page);
    }

    void release(Request& request, bool aborted) {
        for (int group = FULL; group < GROUPS; group++) {
            Numbers pages = std::exchange(request.table[group], {});
            std::reverse(pages.begin(), pages.end());  // the end of a prefix makes room first
            say_pages("release", group, pages, request.r);
            for (long page : pages) {
                if (page == NONE) continue;
                if (aborted && bug == "freed-while-shared") cache.pages[page].references = 1;  // whoever else holds it
                cache.release(page);
            }
        }
        request.admitted = false;
    }

    void preempt(Request& request) {
        if (!request.admitted) return;
        say(event("preempt").add("r", request.r));
        release(request, false);
    }

    void end(const std::string& how, const std::string& r) {
        say(event(how).add("r", r));
        release(live.at(r), how == "abort");
        live.erase(r);
    }

    void forget_all(const std::string& kind, const Json& op) {
        if (op["tier"].text == "cpu") return;  // there is no such tier
        for (auto& [r, request] : live)
            if (kind == "update_weights" || op["running"].text == "true") preempt(request);
        for (size_t page = 0; page < cache.pages.size(); page++)
            if (cache.pages[page].prefix >= 0) unpublish(static_cast<long>(page), kind == "reset" ? "reset" : "version");
        if (kind == "reset")
            say(event("reset").raw("ok", "true"));
        else
            say(event("version").add("weights", op["version"].number()).add("adapter", op["adapter"].text));
    }

    // What the cache itself counts; the harness holds it against what it saw.
    void count() {
        const long unheld = static_cast<long>(cache.unheld.size()), held = static_cast<long>(cache.pages.size()) - unheld;
        const auto keyed = [this](long page) { return cache.pages[page].prefix >= 0; };
        const long cached = std::count_if(cache.unheld.begin(), cache.unheld.end(), keyed);
        std::vector<std::string> references;
        for (long page : touched) references.push_back(list({page, long(cache.pages[page].references)}));
        Object counts = event("counts").add("pool", 0).add("free", unheld - cached).add("held", held);
        say(counts.add("cached", cached).raw("refs", list(references)));
    }
};

// --- the conversation -----------------------------------------------------------------------------------------------------

const std::string READY =
    R"({"is":"ready","protocol":"cachewitness.engine","version":2,"levels":["manager"],"layouts":[)"
    R"({"name":"hybrid-16","groups":[{"kind":"full","block_size":16},{"kind":"recurrent","block_size":16}]},)"
    R"({"name":"hybrid-4","groups":[{"kind":"full","block_size":4},{"kind":"recurrent","block_size":4}]}]})";

void refuse_unless(bool fits, const std::string& what) {
    if (!fits) throw std::runtime_error(what);
}

std::string header(const Json& trace) {
    const auto& groups = trace["layout"]["groups"].items;
    refuse_unless(trace["level"].text == "manager", "this engine has no scheduler of its own");
    refuse_unless(groups.size() == 2 && groups[0]["kind"].text == "full" && groups[1]["kind"].text == "recurrent",
                  "this engine has a group of full attention and a recurrent one, in this order");
    refuse_unless(groups[0]["block_size"].text == groups[1]["block_size"].text, "both groups have one block size");
    refuse_unless(trace["options"].fields.empty(), "this engine has no options");
    const std::string size = groups[0]["block_size"].text;
    return R"({"e":"header","engine":"hybrid driver","level":"manager","pools":[{"id":0,"pages":)" + trace["pages"].text +
           R"(}],"groups":[{"id":0,"kind":"full","block_size":)" + size + R"(},{"id":1,"kind":"recurrent","block_size":)" +
           size + R"(,"snapshots":"every-block"}],"rules":{"unkeyed":{"duplicates":true},"alignment":)" + size +
           R"(},"capabilities":["abort","adapter","preempt","reset","salt","update_weights"]})";
}

std::string answer(std::vector<Engine>& open, const Json& question, const std::string& bug) {
    const std::string what = question["do"].text;
    try {
        if (what == "apply") return R"({"is":"happened","events":)" + open.at(0).apply(question["op"]) + "}";
        open.clear();
        if (what == "close") return R"({"is":"closed"})";
        const std::string declared = header(question["trace"]);
        open.emplace_back(question["trace"], bug);
        return R"({"is":"opened","header":)" + declared + "}";
    } catch (const std::exception& error) {
        return R"({"is":"refused","message":")" + std::string(error.what()) + "\"}";
    }
}

int main(int count, char** words) {
    const char *input = getenv("CACHEWITNESS_ASKED"), *output = getenv("CACHEWITNESS_ANSWERS");
    if (!input || !output) return fprintf(stderr, "start it by: cachewitness run --engine jsonl:command=%s\n", words[0]), 2;
    const std::string bug = count > 1 ? std::string(words[1]).substr(std::string("--bug=").size()) : "";
    FILE *questions = fdopen(atoi(input), "r"), *answers = fdopen(atoi(output), "w");
    std::vector<Engine> open;  // none, or the one that was opened last
    fprintf(answers, "%s\n", READY.c_str()), fflush(answers);
    char* line = nullptr;
    for (size_t room = 0; getline(&line, &room, questions) > 0; fflush(answers)) {
        const std::string text = line;
        fprintf(answers, "%s\n", answer(open, Reader{text}.value(), bug).c_str());
    }
}
