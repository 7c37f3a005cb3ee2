// SPDX-License-Identifier: MPL-2.0

// Parts that several pages use.
import { useState } from 'preact/hooks'

// icons differ in shape, so that no state depends on its colour.
const icons = {
  ok: 'M3.5 8.5l3 3 6-7',
  warn: 'M8 2l6.3 11.5H1.7zM8 6.5v3M8 11.4v.1',
  bad: 'M4.5 4.5l7 7M11.5 4.5l-7 7',
  oneway: 'M2.5 8h10M9 4.5L12.5 8 9 11.5',
  unknown: 'M5.5 5.8a2.5 2.5 0 1 1 3.6 2.2C8.3 8.4 8 8.8 8 9.6M8 12v.6',
}

const kinds = {
  ok: 'ok', passing: 'ok', alive: 'ok',
  degraded: 'warn', warning: 'warn', slow: 'warn', leaving: 'warn',
  'one way': 'oneway',
  unreachable: 'bad', failing: 'bad', critical: 'bad', failed: 'bad',
  unknown: 'unknown', untested: 'unknown', left: 'unknown',
}

// kindOf returns the kind of a state: ok, warn, oneway, bad or unknown. A state
// of a component is ok or the description of a problem.
export const kindOf = (state) => kinds[state] ?? (state ? 'warn' : 'unknown')

export function Icon({ kind }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
      <path d={icons[kind]} />
    </svg>
  )
}

// State shows a state with its icon and its text.
export function State({ state, children }) {
  const kind = kindOf(state)
  return (
    <span class={`state ${kind}`}>
      <Icon kind={kind} />
      {children ?? state ?? 'unknown'}
    </span>
  )
}

// Problem shows what is broken, why, and what to do.
export function Problem({ state, title, cause, note, advice, error, href }) {
  const kind = kindOf(state)
  return (
    <li class={`problem ${kind}`}>
      <h2>
        <Icon kind={kind} />
        {href ? <a href={href}>{title}</a> : title}
      </h2>
      {cause && <p>{cause}</p>}
      {note && <p>{note}</p>}
      {advice && (
        <p class="advice">
          <strong>What to do</strong> {advice}
        </p>
      )}
      {error && <p class="detail">Last error: {error}</p>}
    </li>
  )
}

const pageSize = 50

// Table shows rows in pages. A column is {label, of, num}: of returns the cell of
// a row, and num aligns numbers. Filter returns the text of a row that the field
// above a long table searches.
export function Table({ caption, columns, rows, empty, filter, id }) {
  const [page, setPage] = useState(0)
  const [words, setWords] = useState('')
  const wanted = words.trim().toLowerCase()
  const found = wanted && filter ? rows.filter((row) => filter(row).toLowerCase().includes(wanted)) : rows
  const last = Math.max(0, Math.ceil(found.length / pageSize) - 1)
  const at = Math.min(page, last)
  const shown = found.slice(at * pageSize, (at + 1) * pageSize)
  return (
    <section class="card" id={id}>
      <div class="bar">
        <h2>{caption}</h2>
        {filter && rows.length > 10 && (
          <label class="filter">
            Filter <input type="search" value={words} onInput={(e) => (setWords(e.target.value), setPage(0))} />
          </label>
        )}
      </div>
      {rows.length === 0 ? (
        <p class="empty">{empty ?? 'None.'}</p>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label={caption}>
          <table>
            <thead>
              <tr>
                {columns.map((c) => (
                  <th scope="col" class={c.num && 'num'} key={c.label}>{c.label}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown.map((row, i) => (
                <tr key={row.key ?? i} class={row.kind && `row-${row.kind}`}>
                  {columns.map((c, j) => (j === 0 ? <th scope="row" key={j}>{c.of(row)}</th> : <td class={c.num && 'num'} key={j}>{c.of(row)}</td>))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {found.length < rows.length && found.length === 0 && <p class="empty">No row has this text.</p>}
      {last > 0 && (
        <nav class="pages" aria-label={`Pages of ${caption}`}>
          <button type="button" disabled={at === 0} onClick={() => setPage(at - 1)}>Previous</button>
          <span>{at * pageSize + 1}–{at * pageSize + shown.length} of {found.length.toLocaleString('en')}</span>
          <button type="button" disabled={at === last} onClick={() => setPage(at + 1)}>Next</button>
        </nav>
      )}
    </section>
  )
}

// Facts is a list of names and values. Entries without a value are left out.
export function Facts({ facts }) {
  return (
    <dl class="facts">
      {Object.entries(facts).filter(([, v]) => v != null && v !== '' && v !== false).map(([name, value]) => (
        <div key={name}><dt>{name}</dt><dd>{value}</dd></div>
      ))}
    </dl>
  )
}

// Loaded shows the error or the progress of a request, and otherwise its children.
export function Loaded({ of, children }) {
  return (
    <>
      {of.error && <p class="notice bad" role="alert"><Icon kind="bad" />{of.error}</p>}
      {of.loading && <p class="empty">Loading…</p>}
      {of.body !== undefined && children(of.body)}
    </>
  )
}
