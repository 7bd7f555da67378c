"""exllamav3's generator, jobs, page table and cache, without a GPU and without its extension.

The model is a stand-in that computes nothing. Its one layer of attention notes in each place of
each page of what prefix the keys and values there are, and each forward says which of those that it
attends to are of another prefix. Two functions of the extension are written anew after
exllamav3_ext/generator (staging.cpp, strings.cpp).
"""

import importlib
import importlib.util
import logging
import sys
from types import ModuleType, SimpleNamespace

BARE = (
    "exllamav3",
    *(f"exllamav3.{name}" for name in ("cache", "generator", "model", "modules", "tokenizer")),
)
STAND_INS = {
    "exllamav3.ext": ("exllamav3_ext",),
    "exllamav3.generator.disk_cache": ("DiskPageCache",),
    "exllamav3.generator.filter": ("Filter",),
    "exllamav3.generator.sampler": ("Sampler", "DefaultSampler"),
    "exllamav3.model.model": ("Model",),
    "exllamav3.tokenizer.tokenizer": ("Tokenizer",),
}
PAGE = 256


def enter():
    """Import exllamav3 without the `__init__` of these packages, which import all models."""
    root = importlib.util.find_spec("exllamav3").submodule_search_locations[0].rpartition("/")[0]
    for name in (*BARE, *STAND_INS):
        module = sys.modules[name] = ModuleType(name)
        if name in BARE:
            module.__path__ = [f"{root}/{name.replace('.', '/')}"]
        vars(module).update({one: type(one, (), {}) for one in STAND_INS.get(name, ())})
        package, _, last = name.rpartition(".")
        if package:
            setattr(sys.modules[package], last, module)
    sys.modules["exllamav3.tokenizer"].MMEmbedding = object
    sys.modules["exllamav3.cache"].RecurrentCache = part("cache.recurrent", "RecurrentCache")
    for name in ("generator.generator", "generator.job"):
        vars(importlib.import_module(f"exllamav3.{name}"))["torch"] = Unpinned(part(name, "torch"))
    logging.disable(logging.WARNING)
    return part("version", "__version__")


def part(module, name):
    """Return something defined in a module of exllamav3."""
    return getattr(importlib.import_module(f"exllamav3.{module}"), name)


class Unpinned:
    """torch, for which memory is never pinned, and there is no device to wait for."""

    def __init__(self, torch):
        self._torch, self.cuda = torch, SimpleNamespace(synchronize=lambda device=None: None)

    def __getattr__(self, name):
        return getattr(self._torch, name)

    def empty(self, *shape, pin_memory=False, **options):
        """Return memory that is not pinned."""
        return self._torch.empty(*shape, **options)

    def zeros(self, *shape, pin_memory=False, **options):
        """Return memory that is not pinned."""
        return self._torch.zeros(*shape, **options)


class Pages:
    """The memory of a layer of attention: of what prefix the keys and values in each place are."""

    def __init__(self, *sizes):
        self.places = {}

    def copy_page(self, source, from_page, to_page, num_tokens):
        """Copy the first tokens of a page."""
        for offset in range(num_tokens):
            self.places[to_page, offset] = self.places.get((from_page, offset))

    def get_tensors(self):
        """There are none."""
        return []


class Model:
    """A model of one layer of attention that computes nothing."""

    loaded_tp, output_device, recurrent_state_cls = False, "cpu", None

    def __init__(self, forward):
        self.config = SimpleNamespace(vocab_size=32, infer_params=SimpleNamespace())
        self.caps, self.cache_weakrefs, self.staged = {}, {}, []
        self.layer = SimpleNamespace(layer_idx=0, cache_layers=[], device=None)
        self.run = forward

    def get_cache_layers(self):
        """Return the layer."""
        return [self.layer]

    def get_recurrent_layers(self):
        """There are none."""
        return []

    def get_layer_instances(self, layer):
        """Return how often a layer is run: once."""
        return [(layer, 0)]

    def prefetch_tokens(self, tokens):
        """Nothing is read ahead."""

    def prefill(self, input_ids, params):
        """Compute a chunk of a prompt."""
        self.run([params["block_table"]], input_ids, params)

    def forward(self, input_ids, params):
        """Compute a token of each answer; return logits that are all alike."""
        self.run(self.staged, input_ids, params)
        return input_ids.new_zeros((*input_ids.shape, 32)).float()


class Extension:
    """The functions of the extension that the generator calls."""

    def __init__(self, model):
        self.model = model

    def generator_stage_decode(
        self, arena, width, tables, positions, _offsets, batch, ids, pages, offsets
    ):
        """Write the tables of a batch, and each next token into its page."""
        self.model.staged = list(tables)
        rows = len(tables)
        arena[: rows * width].zero_()
        for row, table in enumerate(tables):
            arena[row * width : row * width + table.numel()] = table[0]
            arena[rows * width + row] = positions[row]
            batch[row, 0] = pages[row][0, offsets[row]] = ids[row][0, positions[row]]

    def count_match_tensor(self, page, tokens, most):
        """Return how many tokens a page and a prompt begin with alike."""
        same = 0
        while same < min(most, page.shape[1], tokens.shape[1]) and page[0, same] == tokens[0, same]:
            same += 1
        return same


class Tokenizer:
    """Every token is the empty text."""

    def get_id_to_piece_list(self, special):
        """Return the texts of all tokens."""
        return self

    def __getitem__(self, token):
        return ""


class Engine:
    """The generator over so many pages of 256 tokens."""

    def __init__(self, pages, **options):
        self.model = Model(self.forward)
        for name in ("generator.generator", "generator.job", "generator.pagetable"):
            vars(importlib.import_module(f"exllamav3.{name}"))["ext"] = Extension(self.model)
        cache = part("cache.cache", "Cache")(self.model, pages * PAGE, layer_type=Pages)
        cache.initialized = True
        self.generator = part("generator.generator", "Generator")(
            self.model, cache, Tokenizer(), **options
        )
        self.pages = self.model.layer.cache_layers[0].places
        self.jobs = {}
        self.told = []
        """Of each forward and job: its name, which tokens were computed, and at which positions
        it attends to keys and values of another prefix."""

    def submit(self, name, prompt, answer):
        """Queue a job that generates `answer`."""
        torch = part("generator.job", "torch")
        answer = list(answer)
        left = iter(answer)
        sampler = SimpleNamespace(
            reqs_past_ids=False, forward=lambda *more, **options: torch.tensor([[next(left)]])
        )
        job = part("generator.job", "Job")(
            torch.tensor([list(prompt)]), max_new_tokens=len(answer), sampler=sampler
        )
        self.jobs[name] = job
        self.generator.enqueue(job)
        return job

    def forward(self, indices, input_ids, params):
        """Note of what prefix each computed token is, and look at all that it attends to."""
        rows = zip(
            indices,
            input_ids.tolist(),
            params["cache_seqlens"].tolist(),
            params["block_table"].tolist(),
            strict=True,
        )
        for index, tokens, start, table in rows:
            name, job = next(
                (name, job)
                for name, job in self.jobs.items()
                if job.sequences[0].block_index_tensor is index
            )
            known = job.sequences[0].sequence_ids.torch()[0].tolist()
            stop = start + len(tokens)
            prefixes = [hash(tuple(known[: at + 1])) for at in range(stop)]
            places = [(table[at // PAGE], at % PAGE) for at in range(stop)]
            self.pages.update(zip(places[start:], prefixes[start:], strict=True))
            wrong = [at for at in range(stop) if self.pages.get(places[at]) != prefixes[at]]
            self.told.append((name, start, stop, wrong))

    def run(self):
        """Have all jobs run to their ends."""
        while self.generator.num_remaining_jobs():
            self.generator.iterate()
