// SPDX-License-Identifier: MPL-2.0

import { render } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import './style.css'
import { Datacenter } from './datacenter.jsx'
import { Key, Keys } from './keys.jsx'
import { Machines } from './machines.jsx'
import { Overview } from './overview.jsx'
import { Icon } from './parts.jsx'
import { Resource, Resources } from './resources.jsx'
import { Server } from './server.jsx'
import { Node, Nodes, Service, Services } from './catalog.jsx'
import { follow, useStatus } from './status.js'
import { age } from './format.js'

const menu = [
  ['', 'Overview'],
  ['machines', 'Servers and gateways'],
  ['server', 'This server'],
  ['services', 'Services'],
  ['nodes', 'Nodes'],
  ['keys', 'Keys'],
  ['resources', 'Resources'],
]

// readRoute reads the part of the address after "#": a path, whose parts are
// escaped, and the datacenter to read from.
function readRoute() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?')
  const [page, ...rest] = path.split('/').map(decode)
  return { page, name: rest.join('/'), parts: rest, dc: new URLSearchParams(query).get('dc') ?? '' }
}

function decode(part) {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}

function Page({ route, status }) {
  const { page, name, parts, dc } = route
  switch (page) {
    case '': return <Overview {...status} />
    case 'dc': return <Datacenter name={name} {...status} />
    case 'machines': return <Machines {...status} />
    case 'server': return <Server {...status} />
    case 'services': return name ? <Service name={name} dc={dc} /> : <Services dc={dc} {...status} />
    case 'nodes': return name ? <Node name={name} dc={dc} /> : <Nodes dc={dc} {...status} />
    case 'keys': return name && !name.endsWith('/') ? <Key name={name} dc={dc} /> : <Keys prefix={name} dc={dc} {...status} />
    case 'resources':
      return parts.length > 3 ? <Resource type={parts.slice(0, 3)} name={parts.slice(3).join('/')} dc={dc} />
        : <Resources type={parts} dc={dc} {...status} />
  }
  return <h1 tabIndex={-1}>There is no such page</h1>
}

// Connection shows whether the page is current.
function Connection({ live, at, error }) {
  const [, tick] = useState(0)
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 1000)
    return () => clearInterval(timer)
  }, [])
  if (live) return <p class="connection state ok"><Icon kind="ok" />live</p>
  return (
    <p class="connection state bad" title={error}>
      <Icon kind="bad" />
      {at ? `not current: last status ${age((Date.now() - at) / 1000)} ago` : 'no status yet'}
    </p>
  )
}

function App() {
  const [route, setRoute] = useState(readRoute)
  const status = useStatus()
  const main = useRef()
  useEffect(() => {
    const changed = () => {
      setRoute(readRoute())
      scrollTo(0, 0)
      // Screen readers continue at the heading of the new page.
      requestAnimationFrame(() => main.current.querySelector('h1')?.focus({ preventScroll: true }))
    }
    addEventListener('hashchange', changed)
    return () => removeEventListener('hashchange', changed)
  }, [])
  const here = route.page === 'dc' ? '' : route.page
  const s = status.status
  useEffect(() => {
    const title = route.page === 'dc' ? route.name : menu.find(([page]) => page === here)?.[1]
    const faults = s ? s.datacenters.filter((d) => d.state !== 'ok').length : 0
    document.title = `${faults ? `(${faults}) ` : ''}${title ?? 'wanfed'} · wanfed ${s?.datacenter ?? ''}`
  })
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), main.current.focus())}>Skip to the content</a>
      <header>
        <a class="brand" href="#/">wanfed</a>
        {s && <span class="where">{s.node} in {s.datacenter}</span>}
        <Connection {...status} />
        <nav aria-label="Pages">
          <ul>
            {menu.map(([page, label]) => (
              <li key={page}><a href={`#/${page}`} aria-current={page === here ? 'page' : undefined}>{label}</a></li>
            ))}
          </ul>
        </nav>
      </header>
      <main id="main" ref={main} tabIndex={-1}>
        {!status.live && status.error && (
          <p class="notice bad" role="alert">
            <Icon kind="bad" />
            {s ? 'What follows is not current. ' : ''}{status.error}
          </p>
        )}
        <Page route={route} status={status} />
      </main>
    </>
  )
}

render(<App />, document.getElementById('app'))
follow()
