// A driver in Rust at answers level: a small hybrid language model that resumes from cached states, and tells answers alone.
//
//     rustc -O answering_driver.rs
//     cachewitness run --engine jsonl:command=./answering_driver
//
// Put your own engine in the place of `Server`. docs/reference/protocol.md says what every line means.
// One fault can be planted: --bug=stale-snapshot keeps the recurrent state from before the chunk
// that wrote it, as a copy would that did not wait.

use std::collections::{HashMap, VecDeque};
use std::env;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};

// --- JSON: what is asked is read; what is answered is written with format! -------------------------------------------------

/// A text, as it is escaped, or the digits of a number are `text`; the fields of an object are named.
#[derive(Default)]
struct Json {
    text: String,
    items: Vec<Json>,
    fields: HashMap<String, Json>,
}

impl Json {
    fn field(&self, name: &str) -> Option<&Json> {
        self.fields.get(name)
    }
    fn text(&self, name: &str) -> &str {
        self.field(name).map_or("", |value| &value.text)
    }
    fn number(&self, name: &str) -> usize {
        self.text(name).parse().unwrap_or(0)
    }
}

struct Reader<'a> {
    line: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> u8 {
        while self.at < self.line.len() && self.line[self.at].is_ascii_whitespace() {
            self.at += 1;
        }
        *self.line.get(self.at).unwrap_or(&0)
    }

    fn value(&mut self) -> Json {
        let mut out = Json::default();
        match self.next() {
            b'{' | b'[' => {
                let object = self.line[self.at] == b'{';
                self.at += 1;
                while !matches!(self.next(), b'}' | b']' | 0) {
                    let value = self.value();
                    if object {
                        self.skip(b':');
                        let of = self.value();
                        out.fields.insert(value.text, of);
                    } else {
                        out.items.push(value);
                    }
                    self.skip(b',');
                }
                self.at += 1;
            }
            b'"' => {
                self.at += 1;
                let first = self.at;
                while self.at < self.line.len() && self.line[self.at] != b'"' {
                    self.at += if self.line[self.at] == b'\\' { 2 } else { 1 };
                }
                out.text = String::from_utf8_lossy(&self.line[first..self.at.min(self.line.len())]).into_owned();
                self.at += 1;
            }
            _ => {
                let first = self.at;
                while self.at < self.line.len() && !b",]} \n".contains(&self.line[self.at]) {
                    self.at += 1;
                }
                out.text = String::from_utf8_lossy(&self.line[first..self.at]).into_owned();
            }
        }
        out
    }

    fn skip(&mut self, byte: u8) {
        if self.next() == byte {
            self.at += 1;
        }
    }
}

// --- the model: a recurrent state and a sum over all tokens; the next token depends on both ---------------------------------

const VOCABULARY: usize = 64;
const WIDTH: usize = 6;

/// What a request carries from token to token; a copy of it is what the cache keeps.
#[derive(Clone, Default)]
struct State {
    recurrent: [f64; WIDTH],
    attention: [f64; WIDTH],
    tokens: usize,
}

/// A weight between -1 and 1, the same in every run.
fn weight(layer: usize, row: usize, column: usize) -> f64 {
    ((layer * 7919 + row * 104_729 + column * 1_299_709 + 17) as f64).sin()
}

impl State {
    fn advance(&mut self, token: usize) {
        for i in 0..WIDTH {
            let decay = 0.5 + 0.07 * i as f64;
            self.recurrent[i] = decay * self.recurrent[i] + (1.0 - decay) * weight(0, token, i);
            self.attention[i] += weight(1, token, i) * (0.37 * self.tokens as f64).cos();
        }
        self.tokens += 1;
    }

    /// The likeliest next token, and the natural logarithm of its probability.
    fn choose(&self) -> (usize, f64) {
        let scale = 1.0 / (self.tokens as f64).sqrt();
        let logit = |token: usize| -> f64 {
            let of = |layer: usize, state: &[f64; WIDTH]| (0..WIDTH).map(|i| weight(layer, token, i) * state[i]).sum::<f64>();
            1.5 * of(2, &self.recurrent) + scale * of(3, &self.attention)
        };
        let logits: Vec<f64> = (0..VOCABULARY).map(logit).collect();
        let best = (0..VOCABULARY).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0);
        let all: f64 = logits.iter().map(|one| (one - logits[best]).exp()).sum();
        (best, -all.ln())
    }
}

// --- the server: requests in turn, over a cache of states at block boundaries ------------------------------------------------

type Prefix = (String, Vec<usize>); // salt and tokens

struct Request {
    r: String,
    salt: String,
    tokens: Vec<usize>,
    prompt: usize,
    generate: usize,
    logprobs: Vec<f64>,
    state: State,
    restored: Option<usize>,
}

struct Server {
    block: usize,
    chunk: usize,
    places: usize,
    caching: bool,
    stale: bool,
    snapshots: HashMap<Prefix, State>,
    oldest: VecDeque<Prefix>, // the snapshot that was kept first goes first
    live: Vec<Request>,
}

impl Server {
    /// One step: a chunk of a prompt, or one token, for every request.
    fn step(&mut self) {
        let mut live = std::mem::take(&mut self.live);
        for request in &mut live {
            self.run(request);
        }
        self.live = live;
    }

    fn run(&mut self, request: &mut Request) {
        if request.restored.is_none() {
            self.resume(request);
        }
        let before = request.state.clone();
        let stop = request.tokens.len().min(request.state.tokens + self.chunk);
        while request.state.tokens < stop {
            request.state.advance(request.tokens[request.state.tokens]);
            if request.state.tokens % self.block == 0 {
                self.keep(request, &before);
            }
        }
        if stop == request.tokens.len() && !ended(request) {
            let (token, logprob) = request.state.choose();
            request.tokens.push(token);
            request.logprobs.push(logprob);
        }
    }

    /// Continues from the longest prefix that has a snapshot, but for one token that is left to compute.
    fn resume(&mut self, request: &mut Request) {
        let mut length = (request.tokens.len() - 1) / self.block * self.block;
        while length > 0 && !self.snapshots.contains_key(&named(request, length)) {
            length -= self.block;
        }
        if let Some(kept) = self.snapshots.get(&named(request, length)) {
            request.state = kept.clone();
        }
        request.restored = Some(request.state.tokens);
    }

    fn keep(&mut self, request: &Request, before: &State) {
        let prefix = named(request, request.state.tokens);
        if !self.caching || self.snapshots.contains_key(&prefix) {
            return;
        }
        if self.snapshots.len() == self.places {
            if let Some(first) = self.oldest.pop_front() {
                self.snapshots.remove(&first);
            }
        }
        let mut kept = request.state.clone();
        if self.stale {
            kept.recurrent = before.recurrent; // the copy began before the chunk was computed
        }
        self.oldest.push_back(prefix.clone());
        self.snapshots.insert(prefix, kept);
    }
}

fn named(request: &Request, length: usize) -> Prefix {
    (request.salt.clone(), request.tokens[..length].to_vec())
}

fn ended(request: &Request) -> bool {
    request.logprobs.len() == request.generate
}

// --- the conversation -----------------------------------------------------------------------------------------------------

const READY: &str = r#"{"is":"ready","protocol":"cachewitness.engine","version":2,"levels":["answers"],"layouts":[
{"name":"blocks-8","groups":[{"kind":"full","block_size":8},{"kind":"recurrent","block_size":8}]},
{"name":"blocks-16","groups":[{"kind":"full","block_size":16},{"kind":"recurrent","block_size":16}]}]}"#;

fn open(question: &Json, stale: bool) -> Result<(Server, String), String> {
    let trace = question.field("trace").ok_or("a question without a trace")?;
    let options = trace.field("options").map(|all| all.fields.keys().filter(|&name| name != "chunk").count());
    if trace.text("level") != "answers" || options.unwrap_or(0) > 0 {
        return Err("this engine only answers, and has the option chunk alone".into());
    }
    let groups = trace.field("layout").and_then(|layout| layout.field("groups")).ok_or("a layout without groups")?;
    let block = groups.items.first().map_or(0, |group| group.number("block_size"));
    if block == 0 || groups.items.iter().any(|group| group.number("block_size") != block) {
        return Err("this engine has blocks of one size".into());
    }
    let caching = question.field("options").map_or("", |all| all.text("caching")) != "off";
    let chunk = trace.field("options").map_or(0, |all| all.number("chunk"));
    let server = Server {
        block,
        chunk: if chunk > 0 { chunk } else { 3 * block },
        places: (trace.number("pages") / 2).max(1),
        caching,
        stale,
        snapshots: HashMap::new(),
        oldest: VecDeque::new(),
        live: Vec::new(),
    };
    let rules = format!(r#"{{"caching":{caching},"answering":{{"dtype":"float64","vocabulary":{VOCABULARY}}}}}"#);
    let fixed = r#""e":"header","engine":"answering driver","level":"answers","pools":[],"groups":[]"#;
    Ok((server, format!(r#"{{{fixed},"rules":{rules},"capabilities":["abort","salt"]}}"#)))
}

/// Carries one operation out and returns the answers that came with it.
fn apply(server: &mut Server, op: &Json) -> String {
    let r = op.text("r");
    match op.text("op") {
        "submit" => {
            let tokens: Vec<usize> = op.field("tokens").map_or(Vec::new(), |all| all.items.iter().map(read).collect());
            let (r, salt, generate) = (r.to_string(), op.text("salt").to_string(), op.number("generate"));
            let (prompt, logprobs, state) = (tokens.len(), Vec::new(), State::default());
            server.live.push(Request { r, salt, tokens, prompt, generate, logprobs, state, restored: None });
        }
        "step" => server.step(),
        "finish" => while server.live.iter().any(|one| one.r == r && !ended(one)) {
            server.step();
        },
        _ => {}
    }
    let (over, live) = server.live.drain(..).partition(|one| ended(one) || (op.text("op") == "abort" && one.r == r));
    server.live = live;
    let over: Vec<Request> = over;
    let answers: Vec<String> = over.iter().map(answer).collect();
    format!("[{}]", answers.join(","))
}

fn read(token: &Json) -> usize {
    token.text.parse().unwrap_or(0)
}

fn answer(request: &Request) -> String {
    let tokens: Vec<String> = request.tokens[request.prompt..].iter().map(usize::to_string).collect();
    let logprobs: Vec<String> = request.logprobs.iter().map(f64::to_string).collect();
    let how = if ended(request) { "length" } else { "cancelled" };
    format!(
        r#"{{"e":"answer","r":"{}","tokens":[{}],"logprobs":[{}],"restored":{},"ended":"{how}"}}"#,
        request.r,
        tokens.join(","),
        logprobs.join(","),
        request.restored.unwrap_or(0),
    )
}

fn main() -> std::io::Result<()> {
    let (Ok(input), Ok(output)) = (env::var("CACHEWITNESS_ASKED"), env::var("CACHEWITNESS_ANSWERS")) else {
        eprintln!("start it by: cachewitness run --engine jsonl:command=./answering_driver");
        std::process::exit(2);
    };
    let stale = env::args().any(|word| word == "--bug=stale-snapshot");
    let questions = BufReader::new(File::open(format!("/dev/fd/{input}"))?);
    let mut answers = OpenOptions::new().write(true).open(format!("/dev/fd/{output}"))?;
    writeln!(answers, "{}", READY.replace('\n', ""))?;
    let mut server: Option<Server> = None;
    for line in questions.lines() {
        let line = line?;
        let question = Reader { line: line.as_bytes(), at: 0 }.value();
        let answer = match (question.text("do"), &mut server, question.field("op")) {
            ("open", _, _) => match open(&question, stale) {
                Ok((opened, header)) => {
                    server = Some(opened);
                    format!(r#"{{"is":"opened","header":{header}}}"#)
                }
                Err(why) => format!(r#"{{"is":"refused","message":"{why}"}}"#),
            },
            ("apply", Some(server), Some(op)) => format!(r#"{{"is":"happened","events":{}}}"#, apply(server, op)),
            ("close", _, _) => {
                server = None;
                r#"{"is":"closed"}"#.to_string()
            }
            _ => r#"{"is":"refused","message":"no engine is open, or the question is unknown"}"#.to_string(),
        };
        writeln!(answers, "{answer}")?;
    }
    Ok(())
}
