// SPDX-License-Identifier: MPL-2.0

// What the pages that browse stored data have in common.

// at returns a path of the HTTP API for a datacenter. An empty one is local.
export function at(path, dc) {
  return dc ? `${path}${path.includes('?') ? '&' : '?'}dc=${encodeURIComponent(dc)}` : path
}

// Heading is the title of a page, with a choice of the datacenter.
export function Heading({ title, page, dc, status }) {
  const names = status?.datacenters.map((d) => d.name) ?? []
  return (
    <div class="bar">
      <h1 tabIndex={-1}>{title}</h1>
      {names.length > 1 && (
        <label class="filter">
          Datacenter{' '}
          <select value={dc || status.datacenter} onChange={(e) => { location.hash = at(`#/${page}`, e.target.value === status.datacenter ? '' : e.target.value) }}>
            {names.map((n) => <option value={n} key={n}>{n}</option>)}
          </select>
        </label>
      )}
    </div>
  )
}

// Trail links to the pages above: [label, address] each.
export function Trail({ of }) {
  return (
    <nav class="trail" aria-label="Path">
      {of.map(([label, href], i) => <span key={href}>{i > 0 && ' / '}<a href={href}>{label}</a></span>)}
    </nav>
  )
}
