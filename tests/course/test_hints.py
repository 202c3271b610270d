"""A student who follows every third hint to the letter passes.

What the hints say is written out here as code. A change of a third hint is a change of this file. Where it comes to the
reference's own code, test_check.py checks that.
"""

import ast
from pathlib import Path
from textwrap import dedent, indent

import pytest

from gradus import phases
from gradus.exercises.declaration import Exercise, exercises_of, reference_of
from gradus.exercises.skeleton import cut, unwritten
from tests.course.conftest import PHASES

FOLLOWED = {
    "phases/p00_baseline/embedding.py": {
        "embed": """
            return table[token_ids]
        """,
        "rms_norm": """
            mean_square = x.square().mean(dim=-1, keepdim=True)
            return x / (mean_square + eps).sqrt() * weight
        """,
    },
    "phases/p00_baseline/rope.py": {
        "angles": """
            positions = torch.arange(length)
            pairs = torch.arange(head_dim // 2)
            speeds = 1 / theta ** (2 * pairs / head_dim)
            return positions[:, None] * speeds[None, :]
        """,
        "rotate": """
            cos, sin = turns.cos()[:, None, :], turns.sin()[:, None, :]
            a, b = x.chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        """,
    },
    "phases/p00_baseline/attention.py": {
        "causal_mask": """
            places = torch.arange(length)
            return places[None, :] <= places[:, None]
        """,
        "softmax": """
            largest = scores.amax(dim=-1, keepdim=True)
            powers = (scores - largest).exp()
            return powers / powers.sum(dim=-1, keepdim=True)
        """,
        "attend": """
            scores = q @ k.T / q.shape[-1] ** 0.5
            scores = scores.masked_fill(~causal_mask(len(q)), -torch.inf)
            return softmax(scores) @ v
        """,
    },
    "phases/p00_baseline/heads.py": {
        "split": """
            return x.reshape(len(x), -1, head_dim)
        """,
        "attend_grouped": """
            group = q.shape[1] // k.shape[1]
            heads = [attend(q[:, h], k[:, h // group], v[:, h // group]) for h in range(q.shape[1])]
            return torch.stack(heads, dim=1)
        """,
    },
    "phases/p00_baseline/sampling.py": {
        "keep_top": """
            smallest = logits.topk(count).values[-1]
            return logits.masked_fill(logits < smallest, -torch.inf)
        """,
        "sample": """
            logits = keep_top(logits, top_k).double() / temperature
            probabilities = softmax(logits)
            ends = probabilities.cumsum(dim=0)
            return int((ends <= draw * ends[-1]).sum())
        """,
    },
    "phases/p00_baseline/scheduler.py": {
        "OneAtATime.schedule": """
            admissions = []
            if not self.running and self.waiting:
                admissions.append(self.start(slot=0))
            if not self.running:
                return None
            return Plan([self.span(sequence) for sequence in self.running], admissions)
        """,
    },
    "phases/p01_kv_cache/contiguous.py": {
        "Contiguous.stored": """
            return self.length if id == self.owner else 0
        """,
        "Contiguous.reserve": """
            if self.owner not in (None, id) or end > self.capacity:
                return False
            self.owner = id
            self.length = end
            return True
        """,
        "ContiguousAttention.prepare": """
            (self.start,), (self.end,) = batch.starts, batch.lengths
        """,
        "ContiguousAttention.attend": """
            keys, values = self.keys[layer][:, : self.end], self.values[layer][:, : self.end]
            if k is not None:
                keys[:, self.start :] = k.transpose(0, 1)
                values[:, self.start :] = v.transpose(0, 1)
            return attend_causal(
                q, keys, values, start=self.start, scale=self.config.attention_scale,
                window=self.config.windows[layer], softcap=self.config.attention_softcap, sinks=sinks,
            )
        """,
    },
    "phases/p02_static_batching/padded.py": {
        "pad": """
            width, device = max(batch.counts), batch.token_ids.device
            where = torch.tensor(
                [slot * width + i for slot, count in zip(batch.slots, batch.counts) for i in range(count)],
                device=device,
            )
            token_ids = torch.zeros(batch_size * width, dtype=torch.int64, device=device)
            token_ids[where] = batch.token_ids
            positions = torch.zeros(batch_size * width, dtype=torch.int64, device=device)
            positions[where] = batch.positions
            query_start = [slot * width for slot in batch.slots]
            from dataclasses import replace

            return replace(
                batch, token_ids=token_ids, positions=positions, query_start=query_start,
                logits_rows=where[batch.logits_rows],
            )
        """,
        "PaddedAttention.prepare": """
            self.width = width = max(batch.counts)
            self.size = size = len(batch.token_ids) // width
            self.real = real = torch.tensor(
                [start + i for start, count in zip(batch.query_start, batch.counts) for i in range(count)],
                device=batch.positions.device,
            )
            self.slots = real // width
            self.positions = batch.positions[real]
            queries = batch.positions.view(size, width, 1)
            self.length = max(batch.lengths)
            keys = torch.arange(max(batch.lengths), device=queries.device)
            self.masks = {window: visible(queries, keys, window) for window in set(self.config.windows)}
        """,
        "PaddedAttention.attend": """
            if k is not None:
                self.storage.store(layer, self.slots, self.positions, k[self.real], v[self.real])
            keys, values = self.storage.seen(layer, self.size, self.length)
            queries = q.view(self.size, self.width, q.shape[1], q.shape[2])
            mask = self.masks[self.config.windows[layer]]
            scale, softcap = self.config.attention_scale, self.config.attention_softcap
            out = attend_masked(queries, keys, values, mask, scale=scale, softcap=softcap, sinks=sinks)
            return out.reshape(-1, q.shape[1], q.shape[2])
        """,
        "visible": """
            seen = keys <= queries
            if window is not None:
                seen = seen & (keys > queries - window)
            return seen
        """,
    },
    "phases/p03_continuous_batching/scheduler.py": {
        "ContinuousBatching.schedule": """
            admissions = self.admit()
            if not self.running:
                return None
            return Plan([self.span(sequence) for sequence in self.running], admissions)
        """,
        "ContinuousBatching.admit": """
            return [self.start(self.free_slots.pop()) for _ in range(min(len(self.free_slots), len(self.waiting)))]
        """,
        "ContinuousBatching.release": """
            super().release(sequence)
            self.free_slots.append(sequence.slot)
            self.free_slots.sort(reverse=True)
        """,
    },
    "phases/p04_paged_cache/cache.py": {
        "PagedCache.missing": """
            return max(0, self.pages_for(end) - len(self.block_tables.get(id, ())))
        """,
        "PagedCache.reserve": """
            if not self.has_room(id, end):
                return False
            pages = self.take(self.missing(id, end))
            self.block_tables.setdefault(id, []).extend(pages)
            self.lengths[id] = end
            return True
        """,
        "PagedCache.release": """
            self.lengths.pop(id, None)
            self.pool.drop(*reversed(self.block_tables.pop(id, [])))
        """,
    },
    "phases/p04_paged_cache/scheduler.py": {
        "PagedBatching.may_start": """
            return self.cache.has_room(sequence.id, self.end_of_span(sequence), spare=len(self.running))
        """,
        "PagedBatching.make_room": """
            while not self.cache.has_room(sequence.id, self.end_of_span(sequence)):
                last = self.running[-1]
                self.preempt(last)
                if last is sequence:
                    return False
            return True
        """,
        "PagedBatching.preempt": """
            self.release(sequence)
            self.waiting.appendleft(sequence)
            self.preemptions += 1
        """,
    },
    "phases/p04_paged_cache/attention.py": {
        "rows_of": """
            return tables.gather(1, positions // page_size) * page_size + positions % page_size
        """,
        "GatherAttention.attend": """
            if k is not None:
                self.storage.store(layer, self.new_rows, k, v)
            keys, values = self.storage.rows(layer)
            out = torch.empty_like(q)
            for span, rows in self.prompts:
                out[span] = self.attend_prompt(layer, q[span], keys[rows], values[rows], sinks)
            if len(self.decode_rows):
                rows = self.decode_seen
                out[self.decode_rows] = self.attend_decodes(layer, q[self.decode_rows], keys[rows], values[rows], sinks)
            return out
        """,
    },
    "phases/p05_prefix_cache/radix.py": {
        "PrefixIndex.path": """
            node, depth = self.root, 0
            while depth < len(keys) and keys[depth] in node.children:
                node = node.children[keys[depth]]
                count = agreeing(node.keys, keys[depth:])
                yield node, count
                if count < len(node.keys):
                    return
                depth += count
        """,
        "PrefixIndex.insert": """
            known, node, count = [], self.root, 0
            for node, count in self.path(keys):
                known += node.pages[:count]
            fresh = pages[len(known):]
            if fresh:
                if count < len(node.keys):
                    self.split(node, count)
                self.grow(node, keys[len(known):], fresh)
            return known + fresh
        """,
        "PrefixIndex.split": """
            lower = Node(node, node.keys[count:], node.pages[count:], node.children)
            del node.keys[count:], node.pages[count:]
            node.children = {lower.keys[0]: lower}
            for child in lower.children.values():
                child.parent = lower
            self.owners |= dict.fromkeys(lower.pages, lower)
        """,
    },
    "phases/p05_prefix_cache/cache.py": {
        "PrefixCache.admit": """
            pages = self.index.match(page_keys(tokens[:-1], self.page_size, salt))
            self.pool.share(*pages)
            self.block_tables[id] = pages
            found = self.lengths[id] = len(pages) * self.page_size
            self.queried_positions += len(tokens)
            self.hit_positions += found
            return found
        """,
        "PrefixCache.publish": """
            table = self.block_tables[id]
            keys = page_keys(tokens[: self.stored(id)], self.page_size, salt)
            for place, page in enumerate(self.index.insert(keys, table[: len(keys)])):
                if page != table[place]:
                    self.pool.share(page)
                    self.pool.drop(table[place])
                    table[place] = page
        """,
        "PrefixCache.evict": """
            (page,) = self.pool.oldest_idle(1)
            self.index.remove(page)
            self.pool.reclaim(page)
            self.evictions += 1
        """,
    },
    "phases/p05_prefix_cache/tiers.py": {
        "names": """
            before = b""
            for key in keys:
                yield before, key
                before = digest((before, key))
        """,
        "copy_out": """
            return [layer[page].to("cpu", copy=True) for layer in (*storage.keys, *storage.values)]
        """,
        "TieredCache.admit": """
            found = super().admit(id, tokens, salt)
            table = self.block_tables[id]
            for name in [*names(page_keys(tokens[:-1], self.page_size, salt))][len(table) :]:
                if name not in self.host or not self.pool.available:
                    break
                contents = self.host.pop(name)
                table += self.take(1)
                copy_in(self.storage, table[-1], contents)
            fetched = len(table) * self.page_size - found
            if fetched:
                self.lengths[id] += fetched
                self.hit_positions += fetched
                self.fetched_positions += fetched
                self.publish(id, tokens, salt)
            return found + fetched
        """,
        "TieredCache.publish": """
            super().publish(id, tokens, salt)
            path = names(page_keys(tokens[: self.stored(id)], self.page_size, salt))
            for page, name in zip(self.block_tables[id], path, strict=False):
                self.names[page] = name
                self.host.pop(name, None)
        """,
        "TieredCache.evict": """
            (page,) = self.pool.oldest_idle(1)
            self.host[self.names.pop(page)] = copy_out(self.storage, page)
            if len(self.host) > self.host_pages:
                del self.host[next(iter(self.host))]
            super().evict()
        """,
    },
    "phases/p06_chunked_prefill/scheduler.py": {
        "ChunkedPrefill.schedule": """
            self.left = self.token_budget
            return super().schedule()
        """,
        "ChunkedPrefill.end_of_span": """
            return min(len(sequence.tokens), self.cache.stored(sequence.id) + self.left)
        """,
        "ChunkedPrefill.span": """
            start, end = self.cache.stored(sequence.id), self.end_of_span(sequence)
            self.cache.reserve(sequence.id, end)
            self.left -= end - start
            logits = 1 if end == len(sequence.tokens) else 0
            pages = self.cache.table_change(sequence.id)
            return Span(sequence, sequence.slot, start, sequence.tokens[start:end], logits, pages)
        """,
        "ChunkedPrefill.may_start": """
            return self.left > 0 and super().may_start(sequence)
        """,
        "ChunkedPrefill.record": """
            outputs = super().record(span, sampled)
            return outputs if span.logits else []
        """,
    },
    "phases/p07_quantization/rounding.py": {
        "grid": """
            offset = weights.amin(dim=-1)
            scale = (weights.amax(dim=-1) - offset) / (2**bits - 1)
            return scale.clamp(min=TINY), offset
        """,
        "nearest": """
            return ((weights - offset) / scale).round().clamp(0, 2**bits - 1)
        """,
        "dequantize_groups": """
            groups = codes.to(scale.dtype).unflatten(1, (scale.shape[1], -1))
            return (groups * scale[..., None] + offset[..., None]).flatten(1)
        """,
    },
    "phases/p07_quantization/packing.py": {
        "pack": """
            return codes[:, 0::2] | (codes[:, 1::2] << 4)
        """,
        "unpack": """
            return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
        """,
    },
    "phases/p07_quantization/awq.py": {
        "rounded": """
            return dequantize_groups(*quantize_groups(w * factors, group, bits)) / factors
        """,
        "factors_at": """
            factors = (x_size**ratio / (w_size ** (1 - ratio) + SMALLEST)).clamp(min=SMALLEST)
            return factors / (factors.max() * factors.min()).sqrt()
        """,
        "search": """
            x_size, w_size = x.abs().mean(dim=0), size_in_group(w, group)
            best = torch.ones_like(x_size)
            least = output_error(x, w, rounded(w, best, group, bits))
            for ratio in RATIOS:
                factors = factors_at(ratio, x_size, w_size)
                error = output_error(x, w, rounded(w, factors, group, bits))
                if error < least:
                    best, least = factors, error
            return best
        """,
    },
    "phases/p07_quantization/gptq.py": {
        "column_step": """
            codes = nearest(w[:, column], scale, offset, bits)
            error = w[:, column] - (codes * scale + offset)
            w[:, column + 1 :] -= (error / u[column, column])[:, None] * u[column, column + 1 :]
            return codes
        """,
    },
    "phases/p07_quantization/fused.py": {
        "split": """
            sums = np.empty((len(x), x.shape[1] // GROUP), np.float32)
            for m in range(len(x)):
                for group in range(sums.shape[1]):
                    sums[m, group] = x[m, group * GROUP : (group + 1) * GROUP].sum()
            return x[:, 0::2].copy(), x[:, 1::2].copy(), sums
        """,
        "dot": """
            total = np.float32(0)
            for group in range(len(scale)):
                here = slice(group * BYTES, (group + 1) * BYTES)
                pairs, low, high = codes[here], even[here], odd[here]
                part = np.float32(0)
                for i in range(BYTES):
                    part += np.float32(np.uint8(pairs[i] & 15)) * low[i] + np.float32(np.uint8(pairs[i] >> 4)) * high[i]
                total += to_float(scale[group]) * part + to_float(offset[group]) * sums[group]
            return total
        """,
    },
    "phases/p07_quantization/formats.py": {
        "points": """
            codes = torch.arange(2 ** (form.exponent + form.mantissa))
            exponent, fraction = codes >> form.mantissa, (codes % 2**form.mantissa).double() / 2**form.mantissa
            normal, subnormal = (1 + fraction) * 2.0 ** (exponent - form.bias), fraction * 2.0 ** (1 - form.bias)
            values = torch.where(exponent > 0, normal, subnormal)
            return values[values <= form.largest]
        """,
        "encode": """
            values = points(form).to(x.dtype)
            halfway = (values[1:] + values[:-1]) / 2
            below = torch.bucketize(x.abs(), halfway)
            tie = x.abs() == halfway[below.clamp(max=len(halfway) - 1)]
            codes = below + (tie & (below % 2 == 1))
            return (codes | (x.signbit().long() << (form.exponent + form.mantissa))).to(torch.uint8)
        """,
        "power_of_two": """
            highest = torch.tensor(form.largest).log2().floor()
            return torch.exp2(largest.clamp(min=TINY).log2().floor() - highest)
        """,
        "two_scales": """
            tensor = (largest.max() / (E2M1.largest * E4M3.largest)).clamp(min=TINY)
            blocks = decode(encode(largest / E2M1.largest / tensor, E4M3), E4M3).to(largest.dtype)
            return blocks.clamp(min=2.0**-9) * tensor
        """,
    },
    "phases/p07_quantization/kv.py": {
        "store": """
            scale = x.float().abs().amax(dim=-1).clamp(min=TINY) / 127
            return (x / scale[..., None]).round().to(torch.int8), scale
        """,
        "scores": """
            return (codes.to(q.dtype) @ q) * scale
        """,
        "mixed": """
            return (weights * scale) @ codes.to(weights.dtype)
        """,
    },
    "phases/p08_speculation/drafting.py": {
        "seen_before": """
            for size in range(LONGEST, SHORTEST - 1, -1):
                ending = tokens[-size:]
                for start in range(len(tokens) - size - 1, -1, -1):
                    if tokens[start : start + size] == ending:
                        return start + size
            return None
        """,
        "continuation": """
            match = seen_before(tokens)
            if match is None:
                return []
            text = list(tokens)
            for place in range(match, match + count):
                text.append(text[place])
            return text[len(tokens) :]
        """,
    },
    "phases/p08_speculation/verification.py": {
        "accepted": """
            count = 0
            while count < len(drafts) and drafts[count] == sampled[count]:
                count += 1
            return count
        """,
        "kept": """
            rows = 1 + accepted(span.tokens[1:], sampled.tokens)
            result = SpanResult(sampled.tokens[:rows], sampled.logprobs[:rows])
            return replace(span, tokens=span.tokens[:rows], logits=1), result
        """,
    },
    "phases/p08_speculation/cache.py": {
        "RollbackCache.truncate": """
            table = self.block_tables[id]
            pages = self.pages_for(end)
            self.pool.drop(*reversed(table[pages:]))
            del table[pages:]
            self.lengths[id] = end
        """,
    },
    "phases/p09_triton_attention/norm.py": {
        "add_rms_norm_kernel": """
            column = tl.arange(0, BLOCK)
            inside = column < D
            here = tl.program_id(0).to(tl.int64) * D + column
            x = tl.load(x_ptr + here, mask=inside, other=0.0).to(tl.float32)
            delta = tl.load(delta_ptr + here, mask=inside, other=0.0).to(tl.float32)
            weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
            x = (x + delta).to(x_ptr.dtype.element_ty)
            tl.store(x_ptr + here, x, mask=inside)
            x = x.to(tl.float32)
            scale = tl.rsqrt(tl.sum(x * x, 0) / D + eps)
            tl.store(y_ptr + here, (x * scale * weight).to(y_ptr.dtype.element_ty), mask=inside)
        """,
    },
    "phases/p09_triton_attention/paged_attention.py": {
        "take_in": """
            new_peak = tl.maximum(peak, tl.max(score, 1))
            base = tl.where(new_peak == float('-inf'), 0.0, new_peak)
            weight = tl.exp(score - base[:, None])
            shrink = tl.exp(peak - base)
            total = total * shrink + tl.sum(weight, 1)
            seen = seen * shrink[:, None] + tl.dot(weight.to(values.dtype), values, input_precision='ieee')
            return seen, total, new_peak
        """,
    },
    "phases/p09_triton_attention/splits.py": {
        "keys_of_part": """
            blocks = tl.cdiv(length, KEYS)
            start = part * blocks // PARTS * KEYS
            stop = (part + 1) * blocks // PARTS * KEYS
            return start, tl.minimum(stop, length)
        """,
        "merge_parts": """
            highest = tl.max(peak, 0)
            shrink = tl.exp(peak - tl.where(highest == float('-inf'), 0.0, highest))
            total = tl.sum(total * shrink, 0)
            return tl.sum(seen * shrink[:, None], 0) / tl.where(total == 0.0, 1.0, total)
        """,
    },
    "phases/p09_triton_attention/chunks.py": {
        "pairs": """
            return count * start + count * (count + 1) // 2
        """,
        "flops": """
            return 2 * sizes.weights * count + 4 * sizes.width * pairs(start, count)
        """,
        "even": """
            return sizes.weights / (2 * sizes.width)
        """,
        "most_tokens": """
            square = 2 * sizes.width
            linear = 2 * sizes.weights + 4 * sizes.width * start + square
            return max(1, (isqrt(linear * linear + 4 * square * limit) - linear) // (2 * square))
        """,
        "cut": """
            chunks = []
            while start < end:
                count = min(most_tokens(sizes, start, limit), end - start)
                chunks.append((start, count))
                start += count
            return chunks
        """,
    },
    "phases/p10_cuda_graphs/scheduler.py": {
        "PlanningAhead.advance": """
            if self.length(sequence) < sequence.longest:
                super().advance(sequence, plan)
        """,
        "PlanningAhead.end_of_span": """
            return min(self.length(sequence), self.cache.stored(sequence.id) + self.left)
        """,
        "PlanningAhead.span": """
            span = super().span(sequence)
            if not span.tokens:
                span.tokens, span.logits = (UNKNOWN,), 1
            self.unknown[sequence] += span.logits
            return span
        """,
        "PlanningAhead.record": """
            sequence = span.sequence
            self.unknown[sequence] -= span.logits
            if not self.unknown[sequence]:
                del self.unknown[sequence]
            if sequence.finish_reason is not None:
                return []
            if sequence.id not in self.cache.block_tables:
                return self.record_preempted(sequence, span, sampled)
            return super().record(span, sampled)
        """,
    },
    "phases/p10_cuda_graphs/runner.py": {
        "NewestTokens.record": """
            self.tokens[upload(slots, torch.int64, self.tokens.device)] = sampled.clamp(min=0)
        """,
        "NewestTokens.fill_in": """
            unknown = [i for i, span in enumerate(plan.spans) if span.tokens[0] == UNKNOWN]
            if unknown:
                rows = upload([batch.query_start[i] for i in unknown], torch.int64, self.tokens.device)
                slots = upload([batch.slots[i] for i in unknown], torch.int64, self.tokens.device)
                batch.token_ids[rows] = self.tokens[slots]
        """,
    },
    "phases/p10_cuda_graphs/graph_runner.py": {
        "GraphRunner.step": """
            positions = (self.lengths[:size] - 1).clamp(min=0)
            self.attention.prepare_decodes(self.tables[:size], positions, self.lengths[:size])
            return self.model(self.token_ids[:size], positions, self.attention)
        """,
        "GraphRunner.forward": """
            if max(batch.counts) > 1:
                return super().forward(batch)
            size = next(size for size in self.sizes if size >= len(batch.slots))
            self.fill(batch, size)
            return self.replays[size]()
        """,
        "GraphRunner.fill": """
            count, tables = len(batch.slots), uploaded_tables(batch)
            self.token_ids[:count] = batch.token_ids
            self.lengths[:count] = batch.positions + 1
            self.tables[:count, : tables.shape[1]] = tables
            self.token_ids[count:size] = 0
            self.lengths[count:size] = 0
            self.tables[count:size] = 0
        """,
    },
    "phases/p11_structured_output/dfa.py": {
        "closure": """
            found, left = set(states), list(states)
            while left:
                for state in nfa.jumps[left.pop()]:
                    if state not in found:
                        found.add(state)
                        left.append(state)
            return frozenset(state for state in found if nfa.moves[state] or not nfa.jumps[state])
        """,
        "moved": """
            behind = {}
            for state in states:
                for first, last, target in nfa.moves[state]:
                    for byte in range(first, last + 1):
                        behind.setdefault(byte, set()).add(target)
            return behind
        """,
        "subsets": """
            start = closure(nfa, [0])
            numbers, found, steps = {start: 0}, [start], []
            for states in found:
                steps.append({})
                for byte, targets in moved(nfa, states).items():
                    behind = closure(nfa, targets)
                    if behind not in numbers:
                        if len(found) == MOST_STATES:
                            raise too_large(MOST_STATES)
                        numbers[behind] = len(found)
                        found.append(behind)
                    steps[-1][byte] = numbers[behind]
            return Dfa(steps, [last in states for states in found])
        """,
    },
    "phases/p11_structured_output/masks.py": {
        "legal": """
            found, states, place = [], {0: state}, 0
            while place < len(tree):
                byte, depth, tokens, after = tree[place]
                behind = dfa.steps[states[depth]].get(byte)
                if behind is None:
                    place = after
                else:
                    states[depth + 1] = behind
                    found += tokens
                    place += 1
            return found
        """,
        "TokenMasks.mask": """
            if state not in self.kept:
                mask = bytearray(len(self.vocabulary))
                for token in legal(self.tree, self.dfa, state):
                    mask[token] = True
                self.kept[state] = bytes(mask)
            return torch.frombuffer(bytearray(self.kept[state]), dtype=torch.bool)
        """,
    },
    "phases/p11_structured_output/matcher.py": {
        "Matcher.behind": """
            text = b"" if token in self.ends else self.masks.vocabulary[token]
            if not text and token not in self.stops:
                return None
            state = self.masks.dfa.follow(self.states[-1], text)
            complete = state is not None and self.masks.dfa.accepting[state]
            return state if complete or token not in self.stops else None
        """,
        "Matcher.allowed": """
            mask = self.masks.mask(self.states[-1])
            for token in self.stops:
                mask[token] = self.behind(token) is not None
            return mask
        """,
        "Matcher.advance": """
            state = self.behind(token)
            if state is None:
                raise ValueError(f"token {token} may not come next")
            self.states.append(state)
        """,
        "Matcher.roll_back": """
            del self.states[len(self.states) - tokens :]
        """,
    },
    "phases/p12_parallelism/linear.py": {
        "column_part": """
            return torch.cat([each.chunk(parts)[part] for each in matrix.split(list(widths))])
        """,
        "row_part": """
            return matrix.chunk(parts, dim=1)[part]
        """,
        "all_reduce": """
            total, *others = exchange.gather(x).float()
            for other in others:
                total = total + other
            return total.to(x.dtype)
        """,
        "RowParallel.forward": """
            y = all_reduce(self.exchange, F.linear(x, self.weight))
            return y if self.bias is None else y + self.bias
        """,
    },
    "phases/p12_parallelism/heads.py": {
        "heads_of": """
            if config.num_heads % parts:
                raise ConfigError(f"{config.num_heads} heads cannot be divided among {parts} ranks")
            each, group = config.num_heads // parts, config.num_heads // config.num_kv_heads
            if each % group and group % each:
                raise ConfigError(f"{config.num_kv_heads} key-value heads cannot be divided among {parts} ranks")
            queries = range(part * each, (part + 1) * each)
            return queries, range(queries.start // group, (queries.stop - 1) // group + 1)
        """,
        "cut_qkv": """
            queries, keys = heads_of(config, part, parts)
            return torch.cat(
                [rows(q, queries, config.head_dim), rows(k, keys, config.head_dim), rows(v, keys, config.head_dim)]
            )
        """,
    },
    "phases/p12_parallelism/draw.py": {
        "draw": """
            sums, most = scores + noise, max(1, top_k)
            mine = largest(scores if top_k else sums, most)
            offered = torch.stack([scores.gather(1, mine), sums.gather(1, mine), first + mine], dim=-1).double()
            missing = torch.tensor([-torch.inf, -torch.inf, 0]).double().expand(len(offered), most - mine.shape[1], 3)
            everyone = exchange.gather(torch.cat([offered, missing], dim=1))
            scores, sums, ids = everyone.transpose(0, 1).flatten(1, 2).unbind(-1)
            kept = largest(scores, most) if top_k else largest(sums, 1)
            sums, ids = sums.gather(1, kept), ids.gather(1, kept)
            return ids.where(sums == sums.max(dim=1, keepdim=True).values, torch.inf).min(dim=1).values.long()
        """,
    },
    "phases/p12_parallelism/schedule.py": {
        "timetable": """
            period = max(stages, micro_batches)
            ticks = (rounds - 1) * period + micro_batches + stages - 1
            table = [[None] * ticks for _ in range(stages)]
            for round in range(rounds):
                for m in range(micro_batches):
                    for stage in range(stages):
                        table[stage][round * period + m + stage] = m
            return table
        """,
        "bubble": """
            ticks = [micro_batch for row in table for micro_batch in row]
            return ticks.count(None) / len(ticks)
        """,
    },
    "phases/p13_serving/admission.py": {
        "Admission.enter": """
            if self.inside == self.places:
                seconds = self.retry_after()
                raise Refused(f"the queue is full: try again in {seconds} s", "overloaded", retry_after=seconds)
            if self.inside == 0:
                self.departures.clear()
                self.departures.append(self.clock())
            self.inside += 1
        """,
        "Admission.leave": """
            self.inside -= 1
            self.departures.append(self.clock())
        """,
        "Admission.retry_after": """
            gone = len(self.departures) - 1
            elapsed = self.clock() - self.departures[0]
            return math.ceil(min(max(elapsed / max(gone, 1), 1), MOST_RETRY_S))
        """,
    },
    "phases/p13_serving/events.py": {
        "encode": r"""
            text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            for end in LINE_ENDS:
                text = text.replace(end, f"\\u{ord(end):04x}")
            return text
        """,
        "event": r"""
            lines = message.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            return "".join(f"data: {line}\n" for line in lines).encode() + b"\n"
        """,
    },
    "phases/p13_serving/text.py": {
        "Text.take": """
            text = self.held + self.decoder.decode(added)
            found = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in self.stops if stop in text]
            if found:
                _, start, self.stop = min(found)
                self.held = ""
                return text[:start]
            certain = len(text) - beginning(text, self.stops)
            self.held = text[certain:]
            return text[:certain]
        """,
        "Text.rest": """
            held = self.held + self.decoder.decode(b"", final=True)
            self.held = ""
            return held
        """,
        "beginning": """
            sizes = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
            return max(sizes, default=0)
        """,
    },
    "phases/p13_serving/desk.py": {
        "Desk.cancel": """
            if stream.request.id in self.streams:
                stream.end("cancelled")
                self.close(stream, tell=True)
        """,
        "Desk.drain": """
            self.state, self.retry_after = "draining", max(1, math.ceil(seconds))
            try:
                await asyncio.wait_for(self.empty.wait(), seconds)
            except TimeoutError:
                for stream in list(self.streams.values()):
                    self.cancel(stream)
        """,
    },
    "phases/p13_serving/load/goodput.py": {
        "tpot": """
            if record.first is None or record.last is None or record.tokens < 2:
                return None
            return (record.last - record.first) / (record.tokens - 1)
        """,
        "met": """
            if record.failed or record.ttft is None or record.last is None:
                return False
            return record.ttft <= objective.ttft and (tpot(record) or 0.0) <= objective.tpot
        """,
        "goodput": """
            due = [record for record in records if begin <= record.at < end]
            good = sum(met(record, objective) for record in due)
            return good / (end - begin), good / len(due) if due else 0.0
        """,
    },
    "phases/p13_serving/load/knee.py": {
        "kept": """
            known = [point for point in points if valid(point, limit)]
            failed = min((point.rate for point in known if point.p99 > limit), default=float("inf"))
            return max((point.rate for point in known if point.rate < failed), default=0.0)
        """,
        "passes": """
            votes = [0, 0]
            while max(votes) <= tries // 2:
                point = probe(rate)
                if not valid(point, limit):
                    raise LateClient(f"at {rate:g} requests/s the client was {point.late:.3f} s late")
                votes[point.p99 <= limit] += 1
            return votes[True] > tries // 2
        """,
        "find": """
            if not passes(probe, low, limit, tries):
                return 0.0
            if passes(probe, high, limit, tries):
                return high
            while high > low * (1 + precision):
                middle = (low * high) ** 0.5
                if passes(probe, middle, limit, tries):
                    low = middle
                else:
                    high = middle
            return low
        """,
    },
    "phases/p13_serving/load/router.py": {
        "names": """
            found, before = [], blake2b(salt.encode()).digest()
            for start in range(0, len(prompt) - size + 1, size):
                block = ",".join(map(str, prompt[start : start + size]))
                before = blake2b(before + block.encode()).digest()
                found.append(before)
            return found
        """,
        "Replica.matched": """
            return next((place for place, name in enumerate(prompt) if name not in self.known), len(prompt))
        """,
        "Replica.take": """
            for name in reversed(prompt):
                self.known.pop(name, None)
                self.known[name] = None
            while len(self.known) > self.room:
                del self.known[next(iter(self.known))]
        """,
        "choose": """
            numbers = range(len(replicas))
            loads = [replica.inside for replica in replicas]
            if max(loads) - min(loads) > bound:
                return loads.index(min(loads))
            return max(numbers, key=lambda number: (replicas[number].matched(prompt), -loads[number], -number))
        """,
    },
    "phases/p14_experts/router.py": {
        "choose": """
            ranked = scores if correction is None else scores + correction
            return ranked.topk(count, dim=-1).indices
        """,
        "weigh": """
            weights = scores.gather(1, chosen)
            if normalized:
                weights = weights / weights.sum(dim=-1, keepdim=True)
            return weights * scale
        """,
    },
    "phases/p14_experts/dispatch.py": {
        "sort_by_expert": """
            experts = chosen.flatten()
            sizes = experts.bincount(minlength=count)
            return experts.argsort(stable=True), [0, *sizes.cumsum(0).tolist()]
        """,
        "combine": """
            own = results.new_empty(results.shape).float()
            own[pairs] = results.float()
            return (own.unflatten(0, weights.shape) * weights[..., None]).sum(dim=1)
        """,
    },
    "phases/p14_experts/grouped.py": {
        "grouped": """
            out = torch.empty_like(rows)
            for number, (start, end) in enumerate(pairwise(starts)):
                if end > start:
                    out[start:end] = expert(number, rows[start:end])
            return out
        """,
    },
    "phases/p14_experts/distinct.py": {
        "expected_distinct": """
            missed = (1 - chosen / count) ** tokens
            return count * (1 - missed)
        """,
    },
}


JUDGED = 1  # of the exercises whose hints lead to other code: `make test` judges the first, `make stress` the others


def exercises() -> list:
    found = [
        (name, each) for name in PHASES if phases.find(name).has("exercise") for each in exercises_of(phases.find(name))
    ]
    judged = [each.file for name, each in found if in_other_words(name, each)]
    return [
        pytest.param(name, each, id=each.file, marks=pytest.mark.stress if each.file in judged[JUDGED:] else ())
        for name, each in found
        if each.file in FOLLOWED
    ]


def followed(phase: str, exercise: Exercise) -> str:
    """Return the skeleton, with the gaps filled by the third hints."""
    source = cut(reference_of(phases.find(phase), exercise), exercise.functions, phase)
    for name, body in FOLLOWED[exercise.file].items():
        line = next(line for line in source.splitlines() if f'NotImplementedError("{phase}: {name}")' in line)
        depth = line[: len(line) - len(line.lstrip())]
        source = source.replace(line, indent(dedent(body).strip("\n"), depth))
    return source


def in_other_words(phase: str, exercise: Exercise) -> bool:
    """Whether following the hints leads to other code than the reference's. False where no solution is written out."""
    if exercise.file not in FOLLOWED:
        return False
    ours, hinted = reference_of(phases.find(phase), exercise), followed(phase, exercise)
    return ast.dump(ast.parse(ours)) != ast.dump(ast.parse(hinted))


def test_every_exercise_is_here():
    files = [each.file for name in PHASES for each in exercises_of(phases.find(name))]
    assert set(files) <= FOLLOWED.keys()


@pytest.mark.parametrize(("phase", "exercise"), exercises())
def test_a_solution_that_follows_the_third_hints_passes(checked, phase, exercise):
    source = followed(phase, exercise)
    assert not unwritten(source, exercise.functions), "each function of the exercise is written"
    if in_other_words(phase, exercise):
        verdict = checked(phase, source, exercise)
        assert verdict.passed, f"{Path(exercise.file).name}: {verdict.sentence}"
