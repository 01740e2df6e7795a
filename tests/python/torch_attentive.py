"""A model and its training for torch_cases.py: all that may go wrong where parameters are updated late."""

import torch
import tributary.torch as trib


class Attentive(torch.nn.Module):
    """A model that reaches its parameters by more ways than its layers' calls: attention reads its projection's weight,
    two layers share one, and one layer is left out in some steps."""

    def __init__(self):
        super().__init__()
        self.words, self.out = torch.nn.Embedding(12, 8), torch.nn.Linear(8, 12, bias=False)
        self.attention, self.extra = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.nn.Linear(8, 8)
        self.out.weight, self.uses_extra = self.words.weight, True

    def forward(self, words):
        found = self.words(words)
        found = found + self.attention(found, found, found, need_weights=False)[0]
        return self.out(found + self.extra(found) if self.uses_extra else found)


def attentive_run(wrap, make_optimizer, clears_by_model):
    """Trains and returns all that a script may see meanwhile: losses of an evaluation, saved states, parameters."""
    torch.manual_seed(3)
    model, seen = Attentive(), []
    optimizer = wrap(model, make_optimizer(model))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    added = torch.nn.Parameter(torch.ones(12))
    generator = torch.Generator().manual_seed(trib.rank())
    for step in range(9):
        if step == 5:
            optimizer.add_param_group({'params': [added], 'lr': 0.5})
        words = torch.randint(0, 12, (4, 5), generator=generator)
        model.uses_extra = step not in (2, 3, 6)
        (model if clears_by_model else optimizer).zero_grad()
        scores = model(words) + (added if step > 5 else 0)
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten()).backward()
        optimizer.step()
        scheduler.step()
        if step % 3 == 0:
            with torch.no_grad():
                seen += [model.eval()(words), *(value.clone() for value in model.state_dict().values())]
            seen += [value for entry in optimizer.state_dict()['state'].values() for value in entry.values()]
            model.train()
    getattr(optimizer, 'flush', lambda: None)()
    return [torch.as_tensor(value).clone() for value in (*seen, *model.parameters(), added) if value is not None]
