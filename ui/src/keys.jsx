// SPDX-License-Identifier: MPL-2.0

// Keys and their values.
import { useQuery } from './api.js'
import { at, Heading, Trail } from './browse.jsx'
import { bytes, decode, escapePath, text } from './format.js'
import { Facts, Loaded, Table } from './parts.jsx'

// maxShown bounds the shown part of a value, in characters.
const maxShown = 64 << 10

const link = (name, dc) => at(`#/keys/${escapePath(name)}`, dc)

// trail returns the links to the prefixes of a name.
function trail(name, dc) {
  const parts = name.split('/').slice(0, -1)
  return [['Keys', link('', dc)], ...parts.map((part, i) => [part || '(empty)', link(`${parts.slice(0, i + 1).join('/')}/`, dc)])]
}

export function Keys({ prefix, dc, status }) {
  const keys = useQuery(at(`/v1/kv/${escapePath(prefix)}?keys&separator=/`, dc))
  return (
    <>
      <Heading title={prefix || 'Keys'} page="keys" dc={dc} status={status} />
      {prefix && <Trail of={trail(prefix.replace(/[^/]*\/$/, ''), dc)} />}
      <Loaded of={keys}>
        {(body) => (
          <Table
            caption={prefix ? `Keys with the prefix ${prefix}` : 'Keys'}
            rows={(body ?? []).map((name) => ({ key: name, name }))}
            filter={(k) => k.name}
            empty="There is no key."
            columns={[
              { label: 'Key', of: (k) => <a href={link(k.name, dc)}>{k.name.slice(prefix.length) || '(the prefix itself)'}</a> },
              { label: 'Kind', of: (k) => (k.name.endsWith('/') ? 'prefix of further keys' : 'key') },
            ]}
          />
        )}
      </Loaded>
    </>
  )
}

function Value({ base64 }) {
  const data = decode(base64)
  const value = text(data)
  if (value === '') return <p class="empty">The value is empty.</p>
  const shown = value ?? Array.from(data.subarray(0, 4096), (b) => b.toString(16).padStart(2, '0')).join(' ')
  return (
    <>
      {value == null && <p class="note">The value is not text. Its first bytes in hexadecimal:</p>}
      <pre tabIndex={0} aria-label="Value">{shown.slice(0, maxShown)}</pre>
      {shown.length > maxShown && <p class="note">Only the beginning is shown.</p>}
    </>
  )
}

export function Key({ name, dc }) {
  const key = useQuery(at(`/v1/kv/${escapePath(name)}`, dc))
  return (
    <>
      <Trail of={trail(name, dc)} />
      <h1 tabIndex={-1}>{name}</h1>
      <Loaded of={key}>
        {(body) => body ? (
          <section class="card">
            <Facts
              facts={{
                Size: bytes(decode(body[0].Value).length), 'Index of the last change': body[0].ModifyIndex,
                'Index of the creation': body[0].CreateIndex, Flags: body[0].Flags, 'Locked by session': body[0].Session,
              }}
            />
            <Value base64={body[0].Value} />
          </section>
        ) : <p class="empty">There is no such key.</p>}
      </Loaded>
    </>
  )
}
