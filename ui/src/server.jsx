// SPDX-License-Identifier: MPL-2.0

// The server that serves this page.
import { useFetch } from './api.js'
import { age, ago, bytes, count } from './format.js'
import { Facts, State, Table } from './parts.jsx'

// warnBelow is the remaining time of a certificate that needs attention, as in
// the alert rules. In seconds.
const warnBelow = 7 * 86400
const recheck = 60_000

// Certificate shows the remaining time of the certificate of this server, which
// is one of its metrics.
function Certificate() {
  const metrics = useFetch('/metrics', Math.floor(Date.now() / recheck))
  if (metrics.loading) return '…'
  const found = /^wanfed_certificate_expiry_timestamp_seconds\S* (\S+)$/m.exec(metrics.body ?? '')
  if (!found) return metrics.error ?? 'not known'
  const left = Number(found[1]) - Date.now() / 1000
  const until = new Date(Number(found[1]) * 1000).toISOString().slice(0, 16).replace('T', ' ')
  if (left < 0) return <State state="critical">expired {age(-left)} ago, at {until} UTC</State>
  const text = `${age(left)} left, until ${until} UTC`
  return left < warnBelow ? <State state="warning">{text}</State> : text
}

function gossip(g) {
  if (!g.encrypted) return 'not encrypted'
  return `encrypted, ${count(g.keys, 'key')}${g.accepts_plain ? ', unencrypted gossip is accepted' : ''}`
}

export function Server({ status }) {
  if (!status) return <h1 tabIndex={-1}>This server</h1>
  return (
    <>
      <h1 tabIndex={-1}>{status.node} in {status.datacenter}</h1>
      <section class="card">
        <Facts
          facts={{
            Version: status.version,
            'Raft leader': status.leader || <State state="critical">none</State>,
            'Primary datacenter': status.primary_datacenter,
            'Primary epoch': status.primary_epoch || 'not known',
            'Gateway mode': status.mesh_gateway_mode,
            Certificate: <Certificate />,
            'LAN and WAN gossip': gossip(status.gossip),
          }}
        />
      </section>
      <Table
        caption="Components"
        rows={[...status.components].sort((a, b) => (a.state === 'ok') - (b.state === 'ok')).map((c) => ({ ...c, key: c.name }))}
        filter={(c) => `${c.name} ${c.state} ${c.detail}`}
        columns={[
          { label: 'Component', of: (c) => c.name },
          { label: 'State', of: (c) => <State state={c.state} /> },
          { label: 'Detail', of: (c) => c.detail ?? '–' },
        ]}
      />
      {status.replicated && (
        <Table
          caption="Replicas of the primary's resources"
          rows={status.replicated.map((r) => ({ ...r, key: r.type }))}
          columns={[
            { label: 'Type', of: (r) => r.type },
            { label: 'State', of: (r) => (r.known ? <State state="ok" /> : <State state="warning">unknown type: update this server</State>) },
            { label: 'Replicas', num: true, of: (r) => r.records },
            { label: 'Lag', num: true, of: (r) => age(r.lag) },
            { label: 'Last change', of: (r) => ago(r.last_change) },
            { label: 'Received', num: true, of: (r) => bytes(r.received_bytes) },
          ]}
        />
      )}
    </>
  )
}
