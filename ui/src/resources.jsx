// SPDX-License-Identifier: MPL-2.0

// Resources of all types.
import { useQuery } from './api.js'
import { at, Heading, Trail } from './browse.jsx'
import { count, escapePath } from './format.js'
import { Loaded, Table } from './parts.jsx'

const link = (dc, type, name) => at(`#/resources/${[...type, name].filter(Boolean).map(escapePath).join('/')}`, dc)
const title = (type) => type.join('/')

function Types({ dc, status }) {
  const types = useQuery('/api/types')
  return (
    <>
      <Heading title="Resources" page="resources" dc={dc} status={status} />
      <Loaded of={types}>
        {(body) => (
          <Table
            caption={count(body.length, 'type')}
            rows={body.map((t) => ({ ...t, key: title(typeOf(t)) }))}
            filter={(t) => t.key}
            columns={[
              { label: 'Type', of: (t) => <a href={link(dc, typeOf(t))}>{t.key}</a> },
              { label: 'Scope', of: (t) => t.scope ?? '–' },
              { label: 'Federated', of: (t) => (t.federated ? 'yes' : '–') },
            ]}
          />
        )}
      </Loaded>
    </>
  )
}

const typeOf = ({ type }) => [type.group, type.group_version, type.kind]

function List({ type, dc }) {
  const list = useQuery(at(`/api/${title(type)}`, dc))
  return (
    <>
      <Trail of={[['Resources', at('#/resources', dc)]]} />
      <h1 tabIndex={-1}>{title(type)}</h1>
      <Loaded of={list}>
        {(body) => (
          <Table
            caption={count(body.resources.length, 'resource')}
            rows={body.resources.map((r) => ({ ...r, key: `${r.id.tenancy?.namespace} ${r.id.name}` }))}
            filter={(r) => r.id.name}
            empty="There is no resource of this type."
            columns={[
              { label: 'Name', of: (r) => <a href={link(dc, type, r.id.name)}>{r.id.name}</a> },
              { label: 'Version', of: (r) => r.version },
              { label: 'Index', num: true, of: (r) => r.modify_index },
            ]}
          />
        )}
      </Loaded>
    </>
  )
}

export function Resources({ type, ...rest }) {
  return type.length === 3 ? <List type={type} {...rest} /> : <Types {...rest} />
}

export function Resource({ type, name, dc }) {
  const resource = useQuery(at(`/api/${title(type)}/${escapePath(name)}`, dc))
  return (
    <>
      <Trail of={[['Resources', at('#/resources', dc)], [title(type), link(dc, type)]]} />
      <h1 tabIndex={-1}>{name}</h1>
      <Loaded of={resource}>
        {(body) => <section class="card"><pre tabIndex={0} aria-label="Resource">{JSON.stringify(body, null, 2).slice(0, 256 << 10)}</pre></section>}
      </Loaded>
    </>
  )
}
